// From the hyperparameters of an optimizer to the rule that one of its steps follows. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config_types.h"
#include "device/device.h"

namespace zerorun {

/// The rule of step number `step`, from 1 on. Worked out in float64, every number is rounded once.
UpdateRule update_rule_of(const OptimizerConfig& config, int64_t step);

/// What the optimizer remembers of each element, a float32 number each, by torch.optim's names. What its rule
/// has comes in the rule's order; Muon's is for the direction, before there is a rule.
std::vector<const char*> moments_of(const OptimizerConfig& config);

}  // namespace zerorun
