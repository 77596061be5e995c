#include "engine/step_timer.h"

#include <cstdio>
#include <numeric>

namespace zerorun {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

StepTimer::Scope::Scope(StepTimer& timer, Phase phase)
    : timer_(timer.enabled_ ? &timer : nullptr), phase_(phase) {
  if (timer_) begin_ = Clock::now();
}

StepTimer::Scope::~Scope() {
  if (timer_) timer_->milliseconds_[static_cast<size_t>(phase_)] += milliseconds_since(begin_);
}

std::string StepTimer::report(int64_t steps) {
  const double count = static_cast<double>(steps);
  const double whole = milliseconds_since(begin_) / count;
  for (double& phase : milliseconds_) phase /= count;
  const double rest = whole - std::accumulate(milliseconds_.begin(), milliseconds_.end(), 0.0);
  char line[256];
  std::snprintf(line, sizeof line,
                "over %lld steps, ms each: whole %.1f | backward %.1f | reduction wait %.1f | norm %.1f | "
                "update and gather %.1f | rest (forward, data) %.1f",
                static_cast<long long>(steps), whole, milliseconds_[0], milliseconds_[1], milliseconds_[2],
                milliseconds_[3], rest);
  milliseconds_ = {};
  begin_ = Clock::now();
  return line;
}

}  // namespace zerorun
