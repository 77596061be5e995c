#include "engine/step_timer.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/timeline.h"

namespace zerorun {
namespace {

constexpr std::array<const char*, 4> kRanges = {"zerorun backward", "zerorun reduction", "zerorun norm",
                                                "zerorun update"};

constexpr std::array kNames = {TimelineName::backward, TimelineName::reduction, TimelineName::norm,
                               TimelineName::update};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

StepTimer::Scope::Scope(StepTimer& timer, Phase phase) : timer_(timer), phase_(phase) {
  timer_.streams_->begin_range(kRanges[static_cast<size_t>(phase)]);
  if (timeline::is_on()) timeline::record(TimelineKind::begin, kNames[static_cast<size_t>(phase)]);
  if (timer_.enabled_) begin_ = Clock::now();
}

StepTimer::Scope::~Scope() {
  timer_.streams_->end_range();
  if (timeline::is_on()) timeline::record(TimelineKind::end, kNames[static_cast<size_t>(phase_)]);
  if (timer_.enabled_) timer_.milliseconds_[static_cast<size_t>(phase_)] += milliseconds_since(begin_);
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
  return line + (streams_->asynchronous() ? describe(streams_->take_times(), steps) : "");
}

std::string describe(const StreamTimes& times, int64_t steps) {
  std::string text = "; on the device";
  const char* separator = " ";
  auto add = [&](const char* name, Lane lane, Handover handover) {
    const double busy = times.busy[static_cast<size_t>(lane)] / static_cast<double>(steps);
    const double exposed = times.exposed[static_cast<size_t>(handover)] / static_cast<double>(steps);
    if (busy <= 0) return;
    char part[128];
    std::snprintf(part, sizeof part, "%s%s %.1f, %.1f of it waited for (overlap %.0f %%)", separator, name,
                  busy, exposed, 100 * std::max(0.0, 1 - exposed / busy));
    text += part;
    separator = " | ";
  };
  add("reductions", Lane::reduce, Handover::reduced);
  add("gathers", Lane::gather, Handover::gathered);
  return text;
}

}  // namespace zerorun
