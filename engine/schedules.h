// The schedule of a run, the config's or the program's. Used by initialize() and EngineState, in their
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "config/config.h"
#include "engine/options.h"
#include "optim/schedule.h"
#include "optim/shard_optimizer.h"

namespace zerorun {

/// Throws UserError if config and options name more than one schedule, if the options have an lr_scheduler
/// without its optimizer, or if a list of values per parameter group does not have one value for every group.
/// Asks the program's schedule for the values of step 0, so that its errors come before the model changes.
/// `options.schedule` then returns these values first, without another call.
void check_schedules(const Config& config, InitializeOptions& options);

/// The config's schedule or the program's function; empty if there is neither. `optimizer` gives the groups'
/// initial learning rates and is not kept. If the result calls the program's function, it throws UserError
/// for a learning rate that is negative or not finite, and for betas if the optimizer has none. The config's
/// schedule leaves betas out if the optimizer has none, with a warning if `logs`.
Schedule make_schedule(const Config& config, const InitializeOptions& options,
                       const ShardOptimizer& optimizer, bool logs);

/// Gives an optimizer the values of a schedule. Used by one thread.
class ScheduleFollower {
 public:
  /// `schedule` may be empty. `lr_scheduler` is the program's and may be null. `optimizer` must outlive this
  /// object.
  ScheduleFollower(Schedule schedule, torch::optim::LRScheduler* lr_scheduler, ShardOptimizer& optimizer)
      : schedule_(std::move(schedule)), lr_scheduler_(lr_scheduler), optimizer_(&optimizer) {}

  /// Whether there is a schedule or an lr_scheduler that sets the values.
  bool is_given() const { return !released_ && (schedule_ || lr_scheduler_); }
  /// From now on only set() sets values. None are due any more.
  void release();
  /// Sets the values of the step after `applied_steps` applied steps.
  void set(int64_t applied_steps);
  /// Like set(), unless the schedule is released. From then on no values are due.
  void ask(int64_t applied_steps);
  /// Sets the lr_scheduler's count of steps, as a checkpoint is loaded. Its rates belong to the optimizer's
  /// groups and are restored with them. What a scheduler of the program keeps besides remains as it is.
  void resume(int64_t applied_steps);
  /// A step was applied: new values are due.
  void note_applied() { behind_ = !released_; }
  /// If new values are due, steps lr_scheduler or asks the schedule. They stay due if the schedule throws, so
  /// that no step uses the values of an earlier one.
  void follow(int64_t applied_steps);

 private:
  Schedule schedule_;
  torch::optim::LRScheduler* lr_scheduler_;
  ShardOptimizer* optimizer_;
  bool behind_ = false;
  bool released_ = false;
};

}  // namespace zerorun
