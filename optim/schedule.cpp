#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace zerorun {

double scheduled_lr(const SchedulerConfig& schedule, double base_lr, int64_t step) {
  const double max_lr = schedule.warmup_max_lr.value_or(base_lr);
  const int64_t warmup = std::max<int64_t>(2, schedule.warmup_num_steps);
  const int64_t iteration = std::max<int64_t>(0, step - 1);

  double factor = 1;
  if (iteration < warmup) {
    factor = schedule.warmup_type == WarmupType::log
                 ? 1.0 / std::log(static_cast<double>(warmup)) * std::log(static_cast<double>(iteration + 1))
                 : static_cast<double>(iteration) / static_cast<double>(warmup);
  } else if (schedule.type == SchedulerType::warmup_decay_lr) {
    const double left = static_cast<double>(schedule.total_num_steps - iteration);
    const double whole = static_cast<double>(std::max<int64_t>(1, schedule.total_num_steps - warmup));
    factor = std::max(0.0, left / whole);
  }
  return schedule.warmup_min_lr + (max_lr - schedule.warmup_min_lr) * factor;
}

}  // namespace zerorun
