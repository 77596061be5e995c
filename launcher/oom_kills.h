// What the kernel reports about processes that it killed because memory ran out: counters of cgroups and of
// the machine, and its log. Each call asks the system anew; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zerorun {

/// How many processes the kernel has killed for lack of memory; absent where the system does not say.
struct OomCounts {
  std::optional<int64_t> cgroup = {};   // of this process's cgroup, whichever limit was reached
  std::optional<int64_t> machine = {};  // of the whole machine, since it started
};

/// One such kill, as the kernel's log describes it.
struct OomKill {
  /// "the memory limit of cgroup /a", "the machine's memory", ...
  std::string limit;
  int64_t resident_bytes = 0;  // memory of the process when it was killed; 0: not known
};

/// `root` replaces "/" (for tests).
OomCounts read_oom_counts(const std::string& root = "");

/// The kernel's messages, oldest first; empty if this process may not read them.
std::vector<std::string> read_kernel_log();

/// The last kill of process `pid` in the kernel's messages. Pure. In a container the kernel's numbers of
/// processes differ from ours: then nothing is found.
std::optional<OomKill> find_oom_kill(const std::vector<std::string>& kernel_log, pid_t pid);

}  // namespace zerorun
