// Learning rate schedules of ds_config.json. Pure functions of the number of optimizer steps; no LibTorch.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace zerorun {

/// The learning rate that optimizer step number `step` (0 is the first) uses; skipped steps are not counted.
/// `base_lr`: the optimizer's own, which WarmupLR rises to when warmup_max_lr is absent.
/// DeepSpeed's lr_schedules.py (WarmupLR, WarmupDecayLR): steps 0 and 1 both get the first value of the
/// warm-up.
double scheduled_lr(const SchedulerConfig& schedule, double base_lr, int64_t step);

}  // namespace zerorun
