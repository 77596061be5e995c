// A second process that outlives a SIGKILL of the launcher just long enough to kill the ranks, grandchildren
// included. It holds the read end of a pipe whose write end only the launcher keeps: end of file means the
// launcher is gone. Owned by the launcher's main thread; one per job.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"

namespace zerorun {

class Guardian {
 public:
  /// Forks. Call before any rank is started. `argv`: main's, so that the process gets a name of its own and a
  /// `pkill -f PROGRAM` aimed at the job misses it. Throws Error.
  Guardian(int argc, char** argv);
  /// The job is over: the guardian leaves without killing anything.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  /// In a forked child that leads a process group of its own, before exec. Async-signal-safe.
  void guard_own_group() const;
  /// The group is empty: its number may come to mean somebody else.
  void forget(pid_t group) const;

 private:
  void send(pid_t message) const;

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace zerorun
