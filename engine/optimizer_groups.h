// The hyperparameters of each parameter group: the config's, and what the program gives beside. Pure; any
// thread.
#pragma once

#include <vector>

#include "config/config.h"
#include "engine/options.h"

namespace zerorun {

/// The config's optimizer with what each parameter group of the options overrides; one where there are none.
/// Muon makes two of each (split_for_muon).
/// Throws UserError for an override that the optimizer does not have.
std::vector<OptimizerConfig> group_configs(const OptimizerConfig& base, const InitializeOptions& options);

}  // namespace zerorun
