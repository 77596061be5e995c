// Computes an optimizer step's update rule from the hyperparameters. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config_types.h"
#include "device/update_rules.h"

namespace zerorun {

/// The update rule of step number `step`, counted from 1. Its numbers are computed in float64 and rounded
/// once. Lamb has no such rule: InternalError.
UpdateRule update_rule_of(const OptimizerConfig& config, int64_t step);

/// Returns torch.optim's names of the optimizer's moments, in the order of the update rule. A moment has one
/// number per element. Muon's rule does not read its moment: the direction is computed from the moment
/// before the rule is applied.
std::vector<const char*> moments_of(const OptimizerConfig& config);

}  // namespace zerorun
