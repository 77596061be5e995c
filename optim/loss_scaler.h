// The factor that the loss of fp16 training is multiplied with, so that small gradients do not vanish.
// DeepSpeed's runtime/fp16/loss_scaler.py (LossScaler, DynamicLossScaler). Owned by the engine, used by its
// thread; no LibTorch.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace zerorun {

class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale;
    int64_t updates = 0;         // optimizer steps, skipped ones too
    int64_t last_overflow = -1;  // the number of updates before it
    int64_t hysteresis;          // overflows until the scale is halved
  };

  explicit LossScaler(const LossScaleConfig& config);

  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  /// A fixed scale stays the config's.
  void set_state(const State& state) {
    state_ = state;
    if (config_.fixed) state_.scale = *config_.fixed;
  }

  /// After each optimizer step; `overflow`: a gradient was not finite and the step was skipped. The scale is
  /// halved once the hysteresis is used up, and doubled after `window` steps without overflow. Returns false
  /// when it should have been halved and was at its minimum: the run cannot go on (DeepSpeed raises an
  /// error). The step is counted all the same, as DeepSpeed does where it is told not to raise. A fixed scale
  /// stays as it is.
  bool update(bool overflow);

 private:
  LossScaleConfig config_;
  State state_;
};

}  // namespace zerorun
