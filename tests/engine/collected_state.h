// Collects the model state that all rank-threads store, so that tests can compare trainings with different
// stages or numbers of ranks.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tests/engine/state_support.h"

namespace zerorun::testing {

class CollectedState {
 public:
  /// Whole flat tensors, by a name such as "exp_avg of first". The state "exact" of a parameter is its
  /// master weights, or its values if it has no master weights.
  using Whole = std::map<std::string, at::Tensor>;

  /// Adds this rank's slices. Each rank calls it once. Thread-safe.
  void add(StateTraining& training);
  const Whole& whole() const { return whole_; }

 private:
  std::mutex mutex_;
  Whole whole_;
};

/// Fails unless both states have the same bits. If `same_precision` is false, the two trainings had different
/// precisions. Then the frozen parameter is not compared: it has no master weights, and its values are
/// rounded to the dtype of each training.
void check_same(CollectedState::Whole a, CollectedState::Whole b, bool same_precision = true);

}  // namespace zerorun::testing
