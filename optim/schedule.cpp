#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zerorun {
namespace {

constexpr double kCycleBeta2 = 0.99;  // OneCycle's beta2, which replaces the optimizer's

double value_for(const PerGroup& values, int group) {
  if (const double* one = std::get_if<double>(&values)) return *one;
  return std::get<std::vector<double>>(values).at(static_cast<size_t>(group));
}

int64_t warmup_steps(const Warmup& warmup) {
  return std::max<int64_t>(2, warmup.num_steps);
}

// Progress of the warm-up after `iteration` steps, from 0 to 1.
double warmup_share(const Warmup& warmup, int64_t iteration) {
  const auto steps = static_cast<double>(warmup_steps(warmup));
  if (warmup.type == WarmupType::linear) return static_cast<double>(iteration) / steps;
  return 1.0 / std::log(steps) * std::log(static_cast<double>(iteration + 1));
}

// Returns the iteration of a warm-up at optimizer step `step`. Steps 0 and 1 are both iteration 0.
int64_t warmup_iteration(int64_t step) {
  return std::max<int64_t>(0, step - 1);
}

double between(double low, double high, double share) {
  return low + (high - low) * share;
}

ScheduledValues values_of(const WarmupLr& schedule, int group, double base_lr, int64_t step) {
  const double min_lr = value_for(schedule.min_lr, group);
  const double max_lr = schedule.max_lr ? value_for(*schedule.max_lr, group) : base_lr;
  const int64_t iteration = warmup_iteration(step);
  const bool rises = iteration < warmup_steps(schedule.warmup);
  return between(min_lr, max_lr, rises ? warmup_share(schedule.warmup, iteration) : 1.0);
}

ScheduledValues values_of(const WarmupDecayLr& schedule, int group, double, int64_t step) {
  const int64_t warmup = warmup_steps(schedule.warmup);
  const int64_t iteration = warmup_iteration(step);
  double share = 0;
  if (iteration < warmup) {
    share = warmup_share(schedule.warmup, iteration);
  } else {
    const auto left = static_cast<double>(schedule.total_num_steps - iteration);
    const auto whole = static_cast<double>(std::max<int64_t>(1, schedule.total_num_steps - warmup));
    share = std::max(0.0, left / whole);
  }
  return between(value_for(schedule.min_lr, group), value_for(schedule.max_lr, group), share);
}

ScheduledValues values_of(const WarmupCosineLr& schedule, int, double base_lr, int64_t step) {
  if (step == 0) return 0.0;
  const int64_t warmup = warmup_steps(schedule.warmup);
  const int64_t iteration = step - 1;
  if (iteration < warmup) {
    return base_lr * between(schedule.min_ratio, 1.0, warmup_share(schedule.warmup, iteration));
  }
  const auto passed = static_cast<double>(iteration - warmup + 1);
  const auto whole = static_cast<double>(std::max<int64_t>(1, schedule.total_num_steps - warmup));
  const double share = (1 + std::cos(std::numbers::pi * std::min(1.0, passed / whole))) / 2;
  return base_lr * std::max(0.0, between(schedule.cos_min_ratio, 1.0, share));
}

// The height of the cycle at `step`, from 0 to 1.
double cycle_share(const OneCycle& schedule, int64_t step) {
  const auto rise = static_cast<double>(schedule.first_step_size);
  const auto fall = static_cast<double>(schedule.second_step_size.value_or(schedule.first_step_size));
  const double total = rise + fall;
  const double peak = rise / total;
  const double cycles = static_cast<double>(step) / total;
  const double at = 1.0 + cycles - std::floor(1 + cycles);
  const bool rises = at <= peak;
  const auto stairs = static_cast<double>(
      rises ? schedule.first_stair_count : schedule.second_stair_count.value_or(schedule.first_stair_count));
  if (stairs <= 0) return rises ? at / peak : (at - 1) / (peak - 1);
  // Computed from `step`, because `at` is rounded: at the edge of a stair, a rounding error could select the
  // stair below.
  const double steps = std::fmod(static_cast<double>(step), total);
  const double position = steps <= rise ? steps * stairs / rise : (total - steps) * stairs / fall;
  return std::floor(position) / stairs;
}

ScheduledValues values_of(const OneCycle& schedule, int group, double, int64_t step) {
  const int64_t total =
      schedule.first_step_size + schedule.second_step_size.value_or(schedule.first_step_size);
  const double min_lr = value_for(schedule.min_lr, group);
  const double max_mom = value_for(schedule.max_mom, group);
  double lr = min_lr;
  double momentum = max_mom;
  if (step == 0) {
    momentum = value_for(schedule.min_mom, group);
  } else if (step <= total) {
    const double share = cycle_share(schedule, step);
    lr = between(min_lr, value_for(schedule.max_lr, group), share);
    momentum = between(max_mom, value_for(schedule.min_mom, group), share);
  } else if (schedule.decay_step_size != 0) {
    const double decays = static_cast<double>(step - total) / static_cast<double>(schedule.decay_step_size);
    lr = min_lr / (1 + schedule.decay_lr_rate * decays);
    momentum = max_mom * (1 + schedule.decay_mom_rate * decays);
  }
  ScheduledValues values(lr);
  if (schedule.cycle_momentum) values.betas = {momentum, kCycleBeta2};
  return values;
}

ScheduledValues values_of(const LrRangeTest& schedule, int group, double, int64_t step) {
  const double steps = static_cast<double>(step) / static_cast<double>(schedule.step_size);
  const double rises = schedule.staircase ? std::floor(steps) : steps;
  return value_for(schedule.min_lr, group) * (1 + schedule.step_rate * rises);
}

}  // namespace

ScheduledValues scheduled_values(const SchedulerConfig& schedule, int group, double base_lr, int64_t step) {
  return std::visit([&](const auto& held) { return values_of(held, group, base_lr, step); }, schedule);
}

}  // namespace zerorun
