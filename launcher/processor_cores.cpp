#include "launcher/processor_cores.h"

// hwloc_topology_load() and the tree of objects: packages, NUMA nodes, caches, cores, processors
#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

Topology new_topology() {
  hwloc_topology_t topology = nullptr;
  if (::hwloc_topology_init(&topology) != 0) throw Error("hwloc cannot be initialized");
  return {topology, ::hwloc_topology_destroy};
}

void load(const Topology& topology) {
  if (::hwloc_topology_load(topology.get()) == 0) return;
  throw Error(std::string("hwloc cannot read this host's processors: ") + std::strerror(errno) +
              ": run without --bind_cores_to_rank");
}

std::vector<int> numbers_in(hwloc_const_bitmap_t bitmap) {
  std::vector<int> numbers;
  for (int number = ::hwloc_bitmap_first(bitmap); number >= 0; number = ::hwloc_bitmap_next(bitmap, number))
    numbers.push_back(number);
  return numbers;
}

int index_of_ancestor(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t object) {
  const hwloc_obj_t ancestor = ::hwloc_get_ancestor_obj_by_type(topology, type, object);
  return ancestor ? static_cast<int>(ancestor->logical_index) : 0;
}

std::vector<ProcessorCore> cores_of(hwloc_topology_t topology) {
  // Some virtual machines do not say which processors share a core. Then each processor counts as a core.
  const bool has_cores = ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<ProcessorCore> cores;
  for (hwloc_obj_t object = nullptr; (object = ::hwloc_get_next_obj_by_type(topology, type, object));) {
    cores.push_back({.processors = numbers_in(object->cpuset),
                     .nodes = numbers_in(object->nodeset),
                     .package = index_of_ancestor(topology, HWLOC_OBJ_PACKAGE, object),
                     .cache = index_of_ancestor(topology, HWLOC_OBJ_L3CACHE, object)});
  }
  return cores;
}

}  // namespace

HostCores read_host_cores() {
  const Topology topology = new_topology();
  load(topology);
  // If HWLOC_SYNTHETIC describes another machine, this process's affinity mask does not apply.
  const Bitmap usable(::hwloc_bitmap_dup(::hwloc_topology_get_allowed_cpuset(topology.get())),
                      ::hwloc_bitmap_free);
  if (::hwloc_topology_is_thissystem(topology.get()) == 1) {
    const Bitmap mask(::hwloc_bitmap_alloc(), ::hwloc_bitmap_free);
    if (::hwloc_get_cpubind(topology.get(), mask.get(), HWLOC_CPUBIND_PROCESS) == 0)
      ::hwloc_bitmap_and(usable.get(), usable.get(), mask.get());
  }
  return {cores_of(topology.get()), numbers_in(usable.get())};
}

HostCores synthetic_cores(const std::string& description) {
  const Topology topology = new_topology();
  if (::hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0)
    throw UserError("hwloc does not understand the topology '" + description + "'");
  load(topology);
  return {cores_of(topology.get()), numbers_in(::hwloc_topology_get_allowed_cpuset(topology.get()))};
}

}  // namespace zerorun::launcher
