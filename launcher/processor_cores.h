// The physical cores of this host: the processors (hyperthreads) of each, its package, NUMA nodes and L3
// cache. Read with hwloc, only when a job asks for it: loading a topology takes milliseconds. Plain values;
// any thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun::launcher {

/// Processors and NUMA nodes have the system's numbers, as `lscpu -e` shows them.
struct ProcessorCore {
  std::vector<int> processors;  // ascending
  std::vector<int> nodes;       // NUMA nodes whose memory is local to the core, ascending
  int package = 0;
  int cache = 0;  // number of the L3 cache; 0 if the processor has none
};

struct HostCores {
  std::vector<ProcessorCore> cores;  // in the topology's order: cores that share a cache are neighbours
  std::vector<int> usable;           // processors that this process may use, ascending
};

/// The cores of this host, and the processors that the affinity mask and the cgroup's cpuset allow. As in all
/// programs that use hwloc, the environment variable HWLOC_SYNTHETIC may describe another machine, which then
/// replaces this host. Throws Error.
HostCores read_host_cores();

/// The cores of a topology in hwloc's synthetic notation, such as "pack:2 numa:1 core:4 pu:2". All are
/// usable. Throws UserError if hwloc does not understand the description.
HostCores synthetic_cores(const std::string& description);

}  // namespace zerorun::launcher
