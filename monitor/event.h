// A value of a run at a point of its training, and where such values go. Plain values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

struct MonitorEvent {
  std::string tag;      // "Train/Samples/train_loss"
  double value = 0;     // may be infinite or NaN
  int64_t samples = 0;  // of all ranks, that training has used so far
};

/// Gets each event. If it throws, a warning is logged, once, and training goes on.
using EventSink = std::function<void(const MonitorEvent& event)>;

}  // namespace zerorun
