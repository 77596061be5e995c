// The state besides slices that a restart needs: step counts, the loss scaler, what the schedule has set,
// random generators. One list, so that saving and restoring cover the same items. Used by the engine's
// thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "engine/engine_state.h"

namespace zerorun {

struct RestartItem {
  std::string name;  // "steps.global", "generator.cpu"
  std::function<RestartValue()> read;
  /// Takes a value that read() returned, in this process or another.
  std::function<void(const RestartValue&)> write;
};

/// `state`: its last step is settled; outlives the list. The names are the same on all ranks. A
/// torch::optim::LRScheduler of the program counts its own steps: the program must restore those.
std::vector<RestartItem> restart_items(EngineState& state);

}  // namespace zerorun
