// A wait for other ranks: how long threads wait for them in all, and the wait in the timeline. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/timeline.h"

namespace zerorun {

/// This object's lifetime is such a wait. `rank`: for whom, in the job; -1: not known.
class WaitForRanks {
 public:
  WaitForRanks(TimelineName name, int32_t rank) : span_(name, rank) {}
  ~WaitForRanks() { waited_ += Clock::now() - begin_; }
  WaitForRanks(const WaitForRanks&) = delete;
  WaitForRanks& operator=(const WaitForRanks&) = delete;

  /// What the calling thread has waited so far.
  static std::chrono::nanoseconds waited() { return waited_; }

 private:
  using Clock = std::chrono::steady_clock;

  static inline thread_local std::chrono::nanoseconds waited_{0};
  TimelineSpan span_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace zerorun
