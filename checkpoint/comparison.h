// Compares two checkpoints parameter by parameter. The ranks and stages that wrote them may differ. Used by
// one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/saved_state.h"

namespace zerorun::checkpoint {

/// A member of the manifest whose values in the two checkpoints differ. A value is empty if its checkpoint
/// does not have the member.
struct SettingDifference {
  std::string name;  // "world_size", "numbers.steps.global"
  std::string first;
  std::string second;
};

struct StateDifference {
  std::string parameter;
  std::string state;      // empty: the parameter as a whole
  std::string reason;     // "only in the first", "shape [2, 3] and [3, 2]", "values"
  int64_t numel = 0;      // elements of the state
  int64_t differing = 0;  // elements whose bits differ
  /// Largest absolute difference of two elements of a floating-point state; infinite if an element is not
  /// finite.
  double largest = 0;
};

struct CheckpointComparison {
  std::vector<SettingDifference> settings;
  std::vector<StateDifference> states;
  int64_t compared = 0;  // number of states that were compared
  bool equal() const { return settings.empty() && states.empty(); }
};

/// Compares the random generators too, if both checkpoints have the same world size. Uses less than 64 MiB of
/// memory besides the manifests. Throws UserError for damaged files.
CheckpointComparison compare_checkpoints(SavedState& first, SavedState& second);

}  // namespace zerorun::checkpoint
