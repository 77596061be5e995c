// From the hyperparameters of an optimizer to the rule that one of its steps follows. Pure functions; any
// thread.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "device/device.h"

namespace zerorun {

/// The rule of step number `step`, from 1 on. Worked out in float64, every number is rounded once.
UpdateRule update_rule_of(const OptimizerConfig& config, int64_t step);

/// How many float32 numbers the optimizer remembers of each element.
int moments_of(const OptimizerConfig& config);

}  // namespace zerorun
