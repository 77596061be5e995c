// The kernel's reports about processes that it killed because memory ran out: counters of cgroups and of the
// machine, and the kernel's log. Each call asks the system anew; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zerorun::launcher {

/// The number of processes that the kernel has killed for lack of memory; absent if the system does not count
/// them.
struct OomCounts {
  std::optional<int64_t> cgroup = {};   // in this process's cgroup, at any memory limit
  std::optional<int64_t> machine = {};  // in the whole machine, since it started
};

/// One kill for lack of memory, as the kernel's log describes it.
struct OomKill {
  /// "the memory limit of cgroup /a", "the machine's memory", ...
  std::string limit;
  int64_t resident_bytes = 0;  // memory of the process when it was killed; 0: not known
};

/// `root` replaces "/" (for tests).
OomCounts read_oom_counts(const std::string& root = "");

/// The kernel's messages, oldest first; empty if this process may not read them.
std::vector<std::string> read_kernel_log();

/// The last kill of process `pid` in the kernel's messages. Pure. The kernel's messages have the host's PIDs:
/// in a container with PIDs of its own nothing is found.
std::optional<OomKill> find_oom_kill(const std::vector<std::string>& kernel_log, pid_t pid);

}  // namespace zerorun::launcher
