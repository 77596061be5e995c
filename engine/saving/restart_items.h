// The state that a restart needs in addition to the slices: step counts, the loss scaler, current learning
// rates and betas, random generators. Saving and restoring use the same list, so they cover the same items.
// Used by the engine's thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "engine/engine_state.h"

namespace zerorun {

/// The item with the number of optimizer steps.
inline constexpr const char* kStepsItem = "steps.global";

struct RestartItem {
  std::string name;  // "steps.global", "generator.cpu"
  std::function<checkpoint::RestartValue()> read;
  /// Restores a value that read() returned in this process or in an earlier one.
  std::function<void(const checkpoint::RestartValue&)> write;
  /// In a checkpoint: that of a CPU run has no GPU generator, and not every run attaches a position.
  bool may_be_missing = false;
};

/// The items of `state`, with the same names on all ranks. `state` must outlive the list. Call it only when
/// the outcome of the last step is known (finish_open_step()).
std::vector<RestartItem> restart_items(EngineState& state);

}  // namespace zerorun
