// Divides the cores of this host among its ranks, and binds a rank to its share. Pure except for
// apply_binding(). Plain values, made before the ranks start.
//
// Every rank gets the same number of whole cores, with all of their usable hyperthreads. No two ranks share a
// core, and the remainder of the division stays free for the system. If every rank can have its cores in a
// single package, ranks stay within packages and are spread evenly over them; likewise for NUMA nodes and L3
// caches.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/processor_cores.h"

namespace zerorun::launcher {

/// The share of one rank.
struct CoreBinding {
  std::vector<int> processors;  // ascending
  std::vector<int> nodes;       // NUMA nodes to take memory from, ascending; empty on a host with one node
  int threads = 1;  // for OMP_NUM_THREADS: its number of cores, or its part of the CPU quota if that is less
  // `processors` and `nodes` as bit masks. A forked child passes these to the kernel without allocating
  // memory.
  std::vector<unsigned long> processor_mask, node_mask;
};

/// The shares of ranks 0 to `ranks` - 1 of this host. `core_list` is the text of --bind_core_list, the only
/// processors that may be used; empty: all usable ones. `quota` is the cgroup's CPU quota in cores. Throws
/// UserError if a listed processor does not exist or may not be used, or if there are fewer cores than ranks.
std::vector<CoreBinding> bind_cores(const HostCores& host, int ranks, const std::string& core_list,
                                    std::optional<double> quota);

/// Throws UserError if a variable of the user's environment ("NAME=value" each) binds threads to processors:
/// it would put the threads of all ranks on the same processors.
void refuse_other_bindings(const std::vector<std::string>& environment);

/// Binds the calling process, and the program that it will exec, to the share. Async-signal-safe: a forked
/// child may call it before exec. Memory comes from the share's NUMA nodes, and from other nodes only when
/// these are full. Returns false, with errno set, if the kernel refuses the processors.
bool apply_binding(const CoreBinding& binding) noexcept;

}  // namespace zerorun::launcher
