// The schedule of a run, be it the config's or the program's. Used by initialize() and the Engine's state, in
// their thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "config/config.h"
#include "engine/options.h"
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

/// Has an optimizer use what a schedule says. Used by one thread.
class ScheduleFollower {
 public:
  /// `schedule` may be empty and `lr_scheduler`, the program's own, null. `optimizer` outlives it.
  ScheduleFollower(Schedule schedule, torch::optim::LRScheduler* lr_scheduler, ShardOptimizer& optimizer)
      : schedule_(std::move(schedule)), lr_scheduler_(lr_scheduler), optimizer_(&optimizer) {}

  /// Asks for what the step behind `applied_steps` uses; nothing is left to follow() then.
  void ask(int64_t applied_steps);
  /// A step was applied: follow() is to ask for the next one.
  void note_applied() { behind_ = true; }
  /// Does so if that is still to be done: a schedule of the program that threw is asked again, so that no
  /// step is taken with the values of an earlier one.
  void follow(int64_t applied_steps);

 private:
  Schedule schedule_;
  torch::optim::LRScheduler* lr_scheduler_;
  ShardOptimizer* optimizer_;
  bool behind_ = false;
};

}  // namespace zerorun
