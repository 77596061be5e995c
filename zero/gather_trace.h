// The order in which an iteration uses partitioned buckets: recorded, planned (gather_schedule.h), followed.
// Pure bookkeeping, no LibTorch; used under its owner's lock.
//
// [Note: trace] A use is an operator and the buckets it needs; consecutive operators that need the same
// buckets are one use. Every iteration is recorded. An iteration that follows the trace gets the plan's
// steps. One that departs from it gets no more steps, and its record becomes the trace at its end. A record
// that grows too long, because nothing ends the iteration, starts again.
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

  /// Notes the next use. Returns the plan's step before it; null if there is no plan, or no longer: then
  /// record() must follow.
  const GatherPlan::Step* follow(std::span<const int> buckets);
  void record(std::span<const int> buckets, std::string reason);
  /// Whether a use of `buckets` may begin another iteration: the trace is at its end and began with them.
  bool may_begin_again(std::span<const int> buckets) const;
  /// Ends the iteration. Makes a plan if the iteration departed from the trace or was the first one.
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

  std::vector<Use> uses_;  // the trace; while there is no plan or after a departure, the record so far
  size_t position_ = 0;    // uses of this iteration
  GatherPlan plan_;
  bool planned_ = false;
  bool departed_ = false;
  int64_t departures_ = 0;
};

}  // namespace zerorun
