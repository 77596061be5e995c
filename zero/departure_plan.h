// Which bucket departs next, and whether it is complete: [Note: departure] in zero/gradient_reducer.h. Owned
// by the gradient reducer, used under its lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"

namespace zerorun {

class DeparturePlan {
 public:
  /// `buckets` outlive it. Until a plan is made they depart as if gradients came from the last parameter to
  /// the first: a bucket that has parameters of all layers holds back no other.
  explicit DeparturePlan(const Buckets& buckets);

  void start_backward();
  /// Parameters are expected to bring as many gradients as any backward has brought.
  void finish_backward();
  void note_gradient(int parameter);

  /// The bucket whose turn it is, if all gradients expected of it are there.
  std::optional<int> take_complete();
  /// The bucket whose turn it is, whatever it has. Nothing: all have departed.
  std::optional<int> take();
  /// All depart once more.
  void begin_again() { next_ = 0; }

  bool made() const { return made_; }
  /// Makes the plan from the backward that has just ended. A collective.
  void make(Communicator& communicator);

 private:
  struct BucketState {
    int missing = 0;           // parameters that are expected to bring more gradients
    int64_t completed_at = 0;  // position of the last gradient within this backward
  };
  struct ParameterState {
    int arrivals = 0;  // gradients in this backward
    int expected = 1;  // the most that any backward has brought
  };

  const Buckets* buckets_;
  std::vector<BucketState> states_;
  std::vector<ParameterState> parameters_;
  std::vector<int> order_;  // of departure
  size_t next_ = 0;         // position in it
  int64_t arrivals_ = 0;
  bool made_ = false;
};

}  // namespace zerorun
