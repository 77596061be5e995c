// Learning-rate schedules of ds_config.json (DeepSpeed's runtime/lr_schedules.py). Pure functions of the
// number of optimizer steps, for any thread; no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "config/config.h"

namespace zerorun {

/// The hyperparameters of an optimizer step in one parameter group.
struct ScheduledValues {
  ScheduledValues(double rate,  // NOLINT(google-explicit-constructor): schedules may return a rate alone
                  std::optional<std::pair<double, double>> both = {})
      : lr(rate), betas(both) {}

  double lr;
  std::optional<std::pair<double, double>> betas;  // absent: leaves the optimizer's betas unchanged
};

/// A schedule that the program provides. It returns the values for optimizer step number `step` (0 is the
/// first; skipped steps are not counted) in parameter group `group`. It may be called more than once for a
/// step, and must return the same values on every rank.
using Schedule = std::function<ScheduledValues(int64_t step, int group)>;

/// The values for optimizer step number `step` (0 is the first; skipped steps are not counted) in parameter
/// group `group`, whose own learning rate is `base_lr`. Warm-ups begin at step 1: steps 0 and 1 both get the
/// first value, except that WarmupCosineLR's step 0 gets 0. OneCycle's betas are (momentum, 0.99). Its
/// momentum is at its minimum in step 0, starts near its maximum in step 1, and falls while the learning rate
/// rises.
ScheduledValues scheduled_values(const SchedulerConfig& schedule, int group, double base_lr, int64_t step);

}  // namespace zerorun
