// The loss scale of fp16 training, which keeps small gradients from underflowing. Behaves like LossScaler and
// DynamicLossScaler in DeepSpeed's runtime/fp16/loss_scaler.py. Owned by the engine, used by its thread; no
// LibTorch.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace zerorun {

class LossScaler {
 public:
  /// The state that checkpoints save.
  struct State {
    double scale;
    int64_t updates = 0;         // optimizer steps, including skipped ones
    int64_t last_overflow = -1;  // index, from 0, of the last optimizer step that overflowed; -1: none yet
    int64_t hysteresis;          // overflows left until the scale is halved
  };

  explicit LossScaler(const LossScaleConfig& config);

  double scale() const { return state_.scale; }
  bool is_fixed() const { return config_.fixed.has_value(); }
  const State& state() const { return state_; }
  /// Restores a saved state. A fixed scale keeps the config's value.
  void set_state(const State& state) {
    state_ = state;
    if (config_.fixed) state_.scale = *config_.fixed;
  }

  /// Call this after each optimizer step. `overflow`: a gradient was not finite and the step was skipped.
  /// Halves the scale when the hysteresis is used up, and doubles it after `window` steps without overflow; a
  /// fixed scale does not change. Returns false if the scale should be halved but is at its minimum. Training
  /// cannot continue then (DeepSpeed raises an error), but the step is counted, as in DeepSpeed with
  /// raise_error_at_min_scale=False.
  bool update(bool overflow);

 private:
  LossScaleConfig config_;
  State state_;
};

}  // namespace zerorun
