// Collects the state that all rank-threads store for a model, to compare trainings that partition it
// differently.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tests/engine/state_support.h"

namespace zerorun::testing {

class CollectedState {
 public:
  /// Whole tensors, by state and parameter; both master weights and fp32 values are named "exact".
  using Whole = std::map<std::string, at::Tensor>;

  /// Adds this rank's slices. Each rank calls it once.
  void add(StateTraining& training);
  const Whole& whole() const { return whole_; }

 private:
  std::mutex mutex_;
  Whole whole_;
};

/// Fails unless both are bitwise equal. Without `same_precision` it skips frozen parameters, which have no
/// master weights.
void check_same(CollectedState::Whole a, CollectedState::Whole b, bool same_precision = true);

}  // namespace zerorun::testing
