// Decides which bucket's reduce-scatter starts next, and whether the bucket is complete: [Note: order of
// reductions] in zero/gradient_reducer.h. Owned by the gradient reducer, used under its lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"

namespace zerorun {

class ReductionPlan {
 public:
  /// `store` and `buckets` must outlive this object. Until the plan is made, the order assumes that gradients
  /// arrive from the last parameter to the first, and sorts buckets by their first parameter. So a bucket
  /// with parameters of all layers comes last and delays no other bucket.
  ReductionPlan(const SliceStore& store, const Buckets& buckets);

  void start_backward();
  /// Ends the backward. From now on each parameter is expected to get the largest number of gradients that it
  /// got in one backward so far.
  void finish_backward();
  void note_gradient(int parameter);

  /// Whether the bucket has all its expected gradients.
  bool is_complete(int bucket) const { return states_[bucket].missing <= 0; }
  /// All buckets, in the order of their reductions.
  const std::vector<int>& order() const { return order_; }
  /// Takes the next bucket in the order, if it has all its expected gradients.
  std::optional<int> take_complete();
  /// Takes the next bucket in the order, complete or not. Returns nothing if all have been taken.
  std::optional<int> take();
  /// Starts over with the first bucket.
  void begin_again() { next_ = 0; }

  bool made() const { return made_; }
  /// Makes the plan from the backward that has just ended. A collective.
  void make(Communicator& communicator);

 private:
  struct BucketState {
    int missing = 0;           // number of its parameters that are expected to get more gradients
    int64_t last_arrival = 0;  // value of arrivals_ after its latest gradient; 0: no gradient yet
  };
  struct ParameterState {
    int arrivals = 0;  // gradients in this backward
    int expected = 1;  // the largest number of gradients in one earlier backward, at least 1
  };

  const SliceStore* store_;
  const Buckets* buckets_;
  std::vector<BucketState> states_;
  std::vector<ParameterState> parameters_;
  std::vector<int> order_;  // the buckets in the order of their reductions
  size_t next_ = 0;         // index of the next bucket in order_
  int64_t arrivals_ = 0;    // number of gradients in this backward so far
  bool made_ = false;
};

}  // namespace zerorun
