// Notified of the uses of buckets that come and go (zero/residency.h). All ranks have the same uses in the
// same order, and start the same gathers in each of them. So a collective that an observer starts in a call
// has the same place among the gathers on all ranks. Calls come from any thread.
#pragma once

#include <span>

namespace zerorun {

class UseObserver {
 public:
  virtual ~UseObserver() = default;
  /// Called before the gathers of a use, or of a scope that holds buckets, are started.
  virtual void before_gathers() = 0;
  /// Called when the buckets that a use needs are in memory (on a device with streams, when their gathers are
  /// enqueued), before the operator runs. If ranks need different buckets, the wait for the gathers has
  /// failed before, with an error that shows both uses. `buckets`: those that the use needs, ascending.
  virtual void gathered(std::span<const int> buckets) = 0;
};

}  // namespace zerorun
