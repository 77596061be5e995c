// A second process that, if the launcher is killed with SIGKILL, kills the ranks and their descendants, and
// then exits. The guardian holds the read end of a pipe whose write end only the launcher keeps: end of file
// means the launcher is gone. Owned by the launcher's main thread; one per job.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"

namespace zerorun::launcher {

/// The process whose end the guardian reports.
enum class Guarded { launcher, agent };

class Guardian {
 public:
  /// Forks. Call before any rank is started. `argc`, `argv`: main's; the guardian overwrites them with a name
  /// of its own, so that a `pkill -f PROGRAM` for the job does not kill the guardian. Throws Error.
  Guardian(int argc, char** argv, Guarded guarded = Guarded::launcher);
  /// Ends the guardian without killing any group. Call when the job is over.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  /// Call before exec, in a forked child that leads a process group: guards this group. Async-signal-safe.
  void guard_own_group() const;
  /// Call when the group is empty: the system may then reuse its number for another group.
  void forget(pid_t group) const;

 private:
  void send(pid_t message) const;

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace zerorun::launcher
