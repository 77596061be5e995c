// Learning-rate schedules of ds_config.json (DeepSpeed's runtime/lr_schedules.py). Pure functions of the
// number of optimizer steps, for any thread; no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "config/config.h"

namespace zerorun {

/// What an optimizer step uses in one parameter group.
struct ScheduledValues {
  ScheduledValues(double rate,  // NOLINT(google-explicit-constructor): schedules may return a rate alone
                  std::optional<std::pair<double, double>> both = {})
      : lr(rate), betas(both) {}

  double lr;
  std::optional<std::pair<double, double>> betas;  // absent: they stay as they are
};

/// A schedule of the program: what optimizer step number `step` (0 is the first; skipped ones are not
/// counted) uses in parameter group `group`. It may be called more than once for a step, and says the same on
/// every rank.
using Schedule = std::function<ScheduledValues(int64_t step, int group)>;

/// What optimizer step number `step` (0 is the first; skipped ones are not counted) uses in parameter group
/// `group`, whose own learning rate is `base_lr`. Warm-ups begin with step 1: steps 0 and 1 both get their
/// first value, but for WarmupCosineLR's step 0, which gets 0. OneCycle's betas are (momentum, 0.99), in step
/// 0 with the lowest momentum, from step 1 on with the highest, which falls while the learning rate rises.
ScheduledValues scheduled_values(const SchedulerConfig& schedule, int group, double base_lr, int64_t step);

}  // namespace zerorun
