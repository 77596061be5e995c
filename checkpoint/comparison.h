// Compares two checkpoints by parameter, whatever ranks and stages wrote them. Used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/saved_state.h"

namespace zerorun {

/// A member of the manifest whose values differ. An empty text: that checkpoint lacks the member.
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
  double largest = 0;  // absolute difference (floating-point only); infinite if either element is not finite
};

struct CheckpointComparison {
  std::vector<SettingDifference> settings;
  std::vector<StateDifference> states;
  int64_t compared = 0;  // number of states
  bool equal() const { return settings.empty() && states.empty(); }
};

/// Random generators are compared if both have the same world size. Throws UserError for damaged files.
/// Memory besides the manifests: less than 64 MiB.
CheckpointComparison compare_checkpoints(SavedState& first, SavedState& second);

}  // namespace zerorun
