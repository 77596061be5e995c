// The first launcher's connections to launchers that have joined it and whose ranks have ended: with
// --max_restarts they wait for word whether the job is started again. Without it they take the connection for
// broken, and try to join again. Owned by run_attempts(), used on the main thread.
#pragma once

#include <chrono>
#include <list>
#include <utility>

#include "launcher/hosts/frame_socket.h"

namespace zerorun::launcher {

class JoinedLaunchers {
 public:
  JoinedLaunchers() = default;
  /// Tells all that wait that the job is not started again.
  ~JoinedLaunchers();
  JoinedLaunchers(const JoinedLaunchers&) = delete;
  JoinedLaunchers& operator=(const JoinedLaunchers&) = delete;

  void add(FrameSocket socket) { waiting_.push_back(std::move(socket)); }
  /// Gives signs of life without blocking. Call at least every kControlTick.
  void service();
  /// Tells all that wait to join again: the first launcher listens.
  void call_again() { tell(FrameType::again); }

 private:
  using Clock = std::chrono::steady_clock;

  void tell(FrameType word);

  std::list<FrameSocket> waiting_;
  std::list<FrameSocket> told_;  // the other end closes these: what is on its way to it must not be lost
  Clock::time_point last_beat_;
};

}  // namespace zerorun::launcher
