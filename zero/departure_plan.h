// The order in which buckets are reduced, and whether the next one is complete: [Note: departure] in
// zero/gradient_reducer.h. Owned by the gradient reducer, used under its lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"

namespace zerorun {

class DeparturePlan {
 public:
  /// `buckets` outlive it. Until a plan is made, buckets are taken as if gradients came from the last
  /// parameter to the first, so that no bucket waits for one that has parameters of all layers.
  explicit DeparturePlan(const Buckets& buckets);

  void start_backward();
  /// From now on each parameter is expected to get as many gradients as in any backward so far.
  void finish_backward();
  void note_gradient(int parameter);

  /// The next bucket, if it has all expected gradients.
  std::optional<int> take_complete();
  /// The next bucket, complete or not; nothing if all were taken.
  std::optional<int> take();
  /// Starts again with the first bucket.
  void begin_again() { next_ = 0; }

  bool made() const { return made_; }
  /// Makes the plan from the backward that has just ended. A collective.
  void make(Communicator& communicator);

 private:
  struct BucketState {
    int missing = 0;           // parameters that are expected to get more gradients
    int64_t completed_at = 0;  // position of the last gradient within this backward
  };
  struct ParameterState {
    int arrivals = 0;  // gradients in this backward
    int expected = 1;  // the most in any backward so far
  };

  const Buckets* buckets_;
  std::vector<BucketState> states_;
  std::vector<ParameterState> parameters_;
  std::vector<int> order_;  // of reductions
  size_t next_ = 0;         // position in it
  int64_t arrivals_ = 0;
  bool made_ = false;
};

}  // namespace zerorun
