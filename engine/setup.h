// What initialize() decides and checks before anything is moved: pure functions of the config, the options
// and the parameters. Any thread.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "zero/layout.h"

namespace zerorun {

/// Throws UserError unless exactly one of config and options names an optimizer, and it can be used on
/// shards.
void check_one_optimizer(const Config& config, const InitializeOptions& options);

/// Throws UserError when the config's batch sizes were resolved for another number of ranks.
void check_world_size(const Config& config, int world_size);

/// Where every trained parameter goes, aligned as the communicator's device wants it.
Layout make_model_layout(const ModelParameters& model, const Config& config, const InitializeOptions& options,
                         const Communicator& communicator);

/// Every setting that must be the same on all ranks, as text to be compared.
std::string describe_settings(const Config& config, const InitializeOptions& options);

}  // namespace zerorun
