// The processes that ranks have left behind and that have left the ranks' process groups (setsid). When their
// parents end, they become children of the launcher, which is a subreaper. Used on the main thread.
#pragma once

#include <sys/types.h>

#include <vector>

namespace zerorun::launcher {

class Orphans {
 public:
  /// Notes the children that this process has: a shell may have started them before it became the launcher.
  Orphans();

  /// The children that are not in `others` and were not there at the start. Empty where the system
  /// does not tell (/proc without `children`).
  std::vector<pid_t> find(const std::vector<pid_t>& others) const;

 private:
  std::vector<pid_t> before_;
};

}  // namespace zerorun::launcher
