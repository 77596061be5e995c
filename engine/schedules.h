// The schedule of a run, be it the config's or the program's. Used by initialize() and the Engine's state, in
// their thread.
#pragma once

#include <string>

#include "config/config.h"
#include "engine/engine.h"
#include "optim/schedule.h"
#include "optim/shard_optimizer.h"

namespace zerorun {

/// Throws UserError unless config and options name at most one schedule, that there is an optimizer for, and
/// each list of values for parameter groups has one for every group.
void check_schedules(const Config& config, const InitializeOptions& options);

/// The config's schedule or the program's function; empty if there is neither. `optimizer`: with the learning
/// rates that its groups were given; not kept. What the program's function says is checked: the result throws
/// UserError for a learning rate that is negative or not finite, and for betas that the optimizer does not
/// have. Where the config's would move such betas it leaves them out; `logs`: and says so.
Schedule make_schedule(const Config& config, const InitializeOptions& options,
                       const ShardOptimizer& optimizer, bool logs);

/// The schedule as text, to be compared between ranks.
std::string describe_schedules(const Config& config, const InitializeOptions& options);

}  // namespace zerorun
