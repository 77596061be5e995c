#include "optim/loss_scaler.h"

#include <algorithm>

namespace zerorun {
LossScaler::LossScaler(const LossScaleConfig& config)
    : config_(config),
      state_{.scale = config.fixed.value_or(config.initial), .hysteresis = config.hysteresis} {}

bool LossScaler::update(bool overflow) {
  const int64_t step = state_.updates++;
  if (config_.fixed) return true;
  if (overflow) {
    state_.last_overflow = step;
    if (state_.hysteresis > 1) {
      --state_.hysteresis;
      return true;
    }
    const bool at_minimum = state_.scale == config_.minimum;
    state_.scale = std::max(state_.scale / 2, config_.minimum);
    return !at_minimum;
  }
  const int64_t steps_without = step - state_.last_overflow - 1;
  const bool grows = steps_without > 0 && steps_without % config_.window == 0;
  if (grows) state_.scale *= 2;
  if (grows || config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
  return true;
}

}  // namespace zerorun
