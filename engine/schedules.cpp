#include "engine/schedules.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/optimizer_groups.h"
#include "optim/hyperparameters.h"
#include "optim/torch_optimizers.h"

namespace zerorun {
namespace {

size_t group_count(const Config& config, const InitializeOptions& options) {
  if (options.optimizer) return options.optimizer->param_groups().size();
  return group_configs(*config.optimizer, options).size();
}

using NamedLists = std::vector<std::pair<const char*, const PerGroup*>>;  // by config key

NamedLists lists_of(const WarmupLr& schedule) {
  NamedLists lists = {{"warmup_min_lr", &schedule.min_lr}};
  if (schedule.max_lr) lists.emplace_back("warmup_max_lr", &*schedule.max_lr);
  return lists;
}
NamedLists lists_of(const WarmupDecayLr& schedule) {
  return {{"warmup_min_lr", &schedule.min_lr}, {"warmup_max_lr", &schedule.max_lr}};
}
NamedLists lists_of(const WarmupCosineLr&) {
  return {};
}
NamedLists lists_of(const OneCycle& schedule) {
  return {{"cycle_min_lr", &schedule.min_lr},
          {"cycle_max_lr", &schedule.max_lr},
          {"cycle_min_mom", &schedule.min_mom},
          {"cycle_max_mom", &schedule.max_mom}};
}
NamedLists lists_of(const LrRangeTest& schedule) {
  return {{"lr_range_test_min_lr", &schedule.min_lr}};
}

NamedLists lists_of(const SchedulerConfig& schedule) {
  return std::visit([](const auto& held) { return lists_of(held); }, schedule);
}

void check_lists(const SchedulerConfig& schedule, size_t groups) {
  for (const auto& [name, values] : lists_of(schedule)) {
    const auto* list = std::get_if<std::vector<double>>(values);
    if (!list || list->size() == groups) continue;
    throw UserError("scheduler.params." + std::string(name) + ": expected one number, or a list of " +
                    std::to_string(groups) + ", one for each parameter group; found a list of " +
                    std::to_string(list->size()) +
                    ": write one number for all groups, or give initialize() as many groups");
  }
}

std::string place(int64_t step, int group) {
  return "the schedule of the program, step " + std::to_string(step) + ", parameter group " +
         std::to_string(group) + ": ";
}

Schedule checked(Schedule given, bool has_betas) {
  return [given = std::move(given), has_betas](int64_t step, int group) {
    const ScheduledValues values = given(step, group);
    if (!std::isfinite(values.lr) || values.lr < 0) {
      throw UserError(place(step, group) + "expected a learning rate that is finite and at least 0, found " +
                      std::to_string(values.lr) + "; look at what InitializeOptions::schedule computes");
    }
    if (values.betas && !has_betas) {
      throw UserError(place(step, group) +
                      "betas for an optimizer that has none: return the learning rate alone");
    }
    return values;
  };
}

bool has_betas(const Config& config, const InitializeOptions& options) {
  if (!options.optimizer) return betas_of(group_configs(*config.optimizer, options).front()).has_value();
  auto& groups = options.optimizer->param_groups();
  return !groups.empty() && betas_of(groups.front().options()) != nullptr;
}

}  // namespace

void check_schedules(const Config& config, InitializeOptions& options) {
  const bool by_program = options.schedule || options.lr_scheduler;
  if (config.scheduler && by_program) {
    throw UserError(
        "both the config and the program name a schedule: remove the config's \"scheduler\" block or do not "
        "pass one to initialize()");
  }
  if (options.schedule && options.lr_scheduler) {
    throw UserError(
        "the program names two schedules: pass InitializeOptions::schedule or lr_scheduler, not both");
  }
  if (options.lr_scheduler && !options.optimizer) {
    throw UserError(
        "InitializeOptions::lr_scheduler moves the learning rates of a torch::optim optimizer, and none is "
        "passed: pass the one that it was made for as InitializeOptions::optimizer, or a function as "
        "InitializeOptions::schedule");
  }
  const size_t groups = group_count(config, options);
  if (config.scheduler) check_lists(*config.scheduler, groups);
  if (!options.schedule) return;
  const Schedule schedule = checked(options.schedule, has_betas(config, options));
  std::deque<ScheduledValues> first;
  for (size_t group = 0; group < groups; ++group) first.push_back(schedule(0, static_cast<int>(group)));
  options.schedule = [given = std::move(options.schedule), first](int64_t step, int group) mutable {
    if (first.empty()) return given(step, group);
    const ScheduledValues values = first.front();
    first.pop_front();
    return values;
  };
}

Schedule make_schedule(const Config& config, const InitializeOptions& options,
                       const ShardOptimizer& optimizer, bool logs) {
  const bool has_betas = optimizer.betas(0).has_value();
  if (options.schedule) return checked(options.schedule, has_betas);
  if (!config.scheduler) return {};
  SchedulerConfig schedule = *config.scheduler;
  if (auto* cycle = std::get_if<OneCycle>(&schedule); cycle && cycle->cycle_momentum && !has_betas) {
    cycle->cycle_momentum = false;
    if (logs) {
      log_warning(
          "scheduler.params.cycle_momentum has no effect: the optimizer has no betas, and its momentum stays "
          "as it is");
    }
  }
  std::vector<double> base_lrs;
  for (int group = 0; group < optimizer.groups(); ++group) base_lrs.push_back(optimizer.lr(group));
  return [schedule = std::move(schedule), base_lrs = std::move(base_lrs)](int64_t step, int group) {
    return scheduled_values(schedule, group, base_lrs[group], step);
  };
}

void ScheduleFollower::release() {
  released_ = true;
  behind_ = false;
}

void ScheduleFollower::ask(int64_t applied_steps) {
  if (schedule_ && !released_) set(applied_steps);
  behind_ = false;
}

void ScheduleFollower::set(int64_t applied_steps) {
  std::vector<ScheduledValues> values;
  for (int group = 0; group < optimizer_->groups(); ++group)
    values.push_back(schedule_(applied_steps, group));
  for (int group = 0; group < optimizer_->groups(); ++group) {
    optimizer_->set_lr(group, values[group].lr);
    if (values[group].betas) optimizer_->set_betas(group, *values[group].betas);
  }
}

void ScheduleFollower::resume(int64_t applied_steps) {
  // LibTorch's LRScheduler has no function for it, but gives its count to classes that are derived from it.
  struct Count : torch::optim::LRScheduler {
    static void set(LRScheduler& scheduler, int64_t count) {
      scheduler.*(&Count::step_count_) = static_cast<unsigned>(count);
    }
  };
  if (lr_scheduler_ && !released_) Count::set(*lr_scheduler_, applied_steps);
}

void ScheduleFollower::follow(int64_t applied_steps) {
  if (!behind_) return;
  if (lr_scheduler_) lr_scheduler_->step();
  ask(applied_steps);
}

}  // namespace zerorun
