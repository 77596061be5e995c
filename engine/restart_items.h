// What outlives a process beside slices: step counts, the loss scaler, what the schedule has set, random
// generators. One list, so that whoever saves or restores it forgets none. Used by the engine's thread.
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
  /// Takes what read() gave, of the same type, in this process or another.
  std::function<void(const RestartValue&)> write;
};

/// Of a state whose last step is settled; it outlives the list. The same names on all ranks. A
/// torch::optim::LRScheduler of the program counts its steps itself: that is the program's to restore.
std::vector<RestartItem> restart_items(EngineState& state);

}  // namespace zerorun
