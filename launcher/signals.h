// The launcher's signals as a file descriptor to poll. Lives as long as the job; one per process, made before
// any rank is started; main thread only.
#pragma once

#include <csignal>
#include <deque>
#include <optional>

#include "base/unique_fd.h"

namespace zerorun::launcher {

class Signals {
 public:
  /// Blocks SIGCHLD, SIGINT, SIGTERM and SIGHUP, which can then be read with next(), and ignores SIGPIPE. A
  /// SIGINT, SIGTERM or SIGHUP that is already ignored (under nohup, or in the background of a shell script)
  /// stays ignored. Throws Error.
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal that has arrived, if any.
  std::optional<int> next();
  /// Whether a signal has arrived that interrupts the job. next() still returns it.
  bool is_interrupted();
  /// Call in a forked child before exec: restores the signals for the rank. Async-signal-safe.
  void restore_in_child() const;

 private:
  std::optional<int> read_next();

  UniqueFd fd_;
  std::deque<int> kept_;  // read by is_interrupted(), for next()
  sigset_t mask_before_;
};

}  // namespace zerorun::launcher
