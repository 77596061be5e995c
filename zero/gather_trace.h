// The order in which an iteration uses partitioned buckets: recorded, planned (gather_schedule.h), followed.
// Pure bookkeeping, no LibTorch; used under its owner's lock.
//
// [Note: trace] A use is an operator and the buckets it needs; consecutive operators that need the same
// buckets are one use. Every iteration is recorded. While it matches the trace, it follows the plan's steps.
// After a departure from the trace it gets no more steps, and its record becomes the trace when it ends. A
// record that reaches 2^15 uses, because nothing ends the iteration, is started over.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero/gather_schedule.h"

namespace zerorun {

class GatherTrace {
 public:
  struct Use {
    std::vector<int> buckets;  // ascending
    std::string reason;        // "for aten::addmm on h.0.weight"
  };

  /// Notes the next use. Returns the plan's step before it, or null if there is no plan or the iteration has
  /// departed from it: then record() must be called.
  const GatherPlan::Step* follow(std::span<const int> buckets);
  void record(std::span<const int> buckets, std::string reason);
  /// Whether a use of `buckets` may begin another iteration: this one is at the end of the trace, and the
  /// trace begins with the same buckets.
  bool may_begin_again(std::span<const int> buckets) const;
  /// The iteration has ended: makes a plan if it departed from the trace or was the first one.
  void finish(std::span<const int64_t> bucket_numel, const GatherLimits& limits);

  /// Whether there is a plan and this iteration has kept to it.
  bool following() const { return planned_ && !departed_; }
  /// Made by the last finish(); empty before.
  const GatherPlan& plan() const { return plan_; }
  const std::string& reason(int use) const { return uses_[use].reason; }
  bool started() const { return position_ > 0; }
  int64_t departures() const { return departures_; }

 private:
  void depart(size_t position);

  std::vector<Use> uses_;  // the trace; without a plan or after a departure, the record so far
  size_t position_ = 0;    // uses of this iteration
  GatherPlan plan_;
  bool planned_ = false;
  bool departed_ = false;
  int64_t departures_ = 0;
};

}  // namespace zerorun
