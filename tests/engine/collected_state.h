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
  /// Whole tensors by state and parameter. The exact values of a parameter (its master weights, or its values
  /// in fp32) are named "exact".
  using Whole = std::map<std::string, at::Tensor>;

  /// Adds this rank's slices. Each rank calls it once. Thread-safe.
  void add(StateTraining& training);
  const Whole& whole() const { return whole_; }

 private:
  std::mutex mutex_;
  Whole whole_;
};

/// Fails unless both states have the same bits. Frozen parameters have no master weights, so they are skipped
/// unless `same_precision`.
void check_same(CollectedState::Whole a, CollectedState::Whole b, bool same_precision = true);

}  // namespace zerorun::testing
