// Records the order in which an iteration uses partitioned buckets, makes a plan from it
// (zero/gather_schedule.h), and compares later iterations with it. Pure bookkeeping, no LibTorch. Owned by
// Residency, used under its lock.
//
// [Note: trace] A use is an operator with the buckets that it needs; consecutive operators that need the same
// buckets count as one use. The trace is the list of uses of an earlier iteration. While an iteration matches
// the trace, it follows the plan's steps. From the first difference on, the iteration gets no more steps. Its
// uses, including those before the difference, are recorded and become the trace when it ends. A record is
// cleared when it has 2^15 uses, so that it does not grow forever if nothing ends the iteration; not in an
// iteration whose end is certain, as in a window of a pipeline.
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

  /// Notes the next use. Returns the plan's step to do before this use. Returns null if there is no plan or
  /// the iteration has differed from the trace; then the caller must call record().
  const GatherPlan::Step* follow(std::span<const int> buckets);
  void record(std::span<const int> buckets, std::string reason);
  /// Whether records may have any length from now on.
  void set_ends_surely(bool ends_surely) { ends_surely_ = ends_surely; }
  /// Whether a use of `buckets` may be the first use of the next iteration. This requires that the trace
  /// begins with the same buckets, and that the current iteration has two uses or more and is not in the
  /// middle of the trace.
  bool may_begin_again(std::span<const int> buckets) const;
  /// Ends the iteration. Makes a plan if this was the first iteration or differed from the trace.
  void finish(std::span<const int64_t> bucket_numel, const GatherLimits& limits);

  /// Whether there is a plan and this iteration has matched the trace so far.
  bool following() const { return planned_ && !departed_; }
  /// The current plan; empty before the first finish().
  const GatherPlan& plan() const { return plan_; }
  const std::string& reason(int use) const { return uses_[use].reason; }
  bool started() const { return position_ > 0; }
  int64_t departures() const { return departures_; }

 private:
  void depart(size_t position);

  std::vector<Use> uses_;  // the trace while following(), else the record of this iteration so far
  size_t position_ = 0;    // number of uses in this iteration so far
  GatherPlan plan_;
  bool planned_ = false;
  bool departed_ = false;
  bool ends_surely_ = false;
  int64_t departures_ = 0;
};

}  // namespace zerorun
