// All that rank-threads keep of a model, put together: for comparing trainings that divide it otherwise.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tests/engine/state_support.h"

namespace zerorun::testing {

class CollectedState {
 public:
  /// Whole tensors of all ranks, by state and parameter; master weights and fp32 values as "exact".
  using Whole = std::map<std::string, at::Tensor>;

  /// What this rank has of them. Each rank calls it once.
  void add(StateTraining& training);
  const Whole& whole() const { return whole_; }

 private:
  std::mutex mutex_;
  Whole whole_;
};

/// Fails where they are not equal to the bit; of other precisions: but for what is frozen, which has no
/// master weights.
void check_same(CollectedState::Whole a, CollectedState::Whole b, bool same_precision = true);

}  // namespace zerorun::testing
