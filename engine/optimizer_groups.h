// The hyperparameters of each parameter group: the config's with the program's overrides. Pure; any thread.
#pragma once

#include <vector>

#include "config/config.h"
#include "engine/options.h"
#include "zero/buckets.h"

namespace zerorun {

/// Returns one config for each parameter group in the options: the config's optimizer with the group's
/// overrides. Without groups, returns the config's optimizer alone. With Muon, splits each result in two
/// (split_for_muon()). Throws UserError for an override that the optimizer does not have.
std::vector<OptimizerConfig> group_configs(const OptimizerConfig& base, const InitializeOptions& options);

/// The rows of an attention head, by parameter of `buckets`, as the options say; 0: not divided into heads.
/// Throws UserError if a named parameter does not exist, is no matrix that Muon updates, or does not divide.
std::vector<int64_t> rows_of_heads(const MuonConfig& config, const InitializeOptions& options,
                                   const Buckets& buckets);

}  // namespace zerorun
