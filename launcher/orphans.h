// The processes that ranks, or processes that start agents, have left behind. When their parents end, they
// become children of the launcher, which is a subreaper. They are part of the job, although they may have
// left its process groups. Used on the main thread.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace zerorun::launcher {

class Orphans {
 public:
  /// Notes the children that this process has: a shell may have started them before it became the launcher.
  Orphans();

  /// The children that are not in `others` and were not there at the start. Empty where the system
  /// does not tell (/proc without `children`).
  std::vector<pid_t> find(const std::vector<pid_t>& others) const;
  /// Sends SIGTERM to what find() returns, once to each process. Those in a process group of `groups` have
  /// got its signal already.
  void ask_to_end(const std::vector<pid_t>& others, const std::set<pid_t>& groups);
  void kill(const std::vector<pid_t>& others) const;

 private:
  std::vector<pid_t> before_;
  std::set<pid_t> asked_;  // have got SIGTERM
};

/// "2 processes that ranks have left behind are ended with the job"
std::string describe_leftovers(size_t count);

}  // namespace zerorun::launcher
