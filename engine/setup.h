// Decisions and checks of initialize() before it moves any tensor: pure functions of the config, the options
// and the parameters. Any thread.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "zero/layout.h"

namespace zerorun {

/// Throws UserError unless exactly one of config and options has an optimizer, and this optimizer can work on
/// shards.
void check_one_optimizer(const Config& config, const InitializeOptions& options);

/// Throws UserError if the config's batch sizes were resolved for another world size.
void check_world_size(const Config& config, int world_size);

/// Places trained parameters and partitioned frozen parameters in buckets, with the alignment that the
/// communicator's device needs.
Layout make_model_layout(const ModelParameters& model, const Config& config, const InitializeOptions& options,
                         const Communicator& communicator);

/// Every setting that must be the same on all ranks, as text to compare.
std::string describe_settings(const Config& config, const InitializeOptions& options);

}  // namespace zerorun
