// The launcher's signals as a file descriptor to poll. Lives as long as the job; one per process, made before
// any rank is started; main thread only.
#pragma once

#include <csignal>
#include <optional>

#include "base/unique_fd.h"

namespace zerorun {

class Signals {
 public:
  /// From here on SIGCHLD, SIGINT, SIGTERM and SIGHUP wait to be read, and SIGPIPE is ignored. Those of
  /// SIGINT, SIGTERM and SIGHUP that are ignored (under nohup, or in the background of a shell script) stay
  /// so. Throws Error.
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal that has arrived, if any.
  std::optional<int> next();
  /// In a forked child, before exec: undoes the above. Async-signal-safe.
  void restore_in_child() const;

 private:
  UniqueFd fd_;
  sigset_t mask_before_;
};

}  // namespace zerorun
