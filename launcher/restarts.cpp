#include "launcher/restarts.h"

#include <array>
#include <cstdio>

#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using Clock = AttemptTimes::Clock;

// " before its first step", " in step 8"; "" if the launcher does not know.
std::string place_of(const FailedAttempt& attempt) {
  if (!attempt.steps) return {};
  return *attempt.steps == 0 ? " before the end of its first step"
                             : " in step " + std::to_string(*attempt.steps + 1);
}

std::string seconds_between(Clock::time_point begin, Clock::time_point end) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f s", std::chrono::duration<double>(end - begin).count());
  return text.data();
}

bool is_repeated(const FailedAttempt& attempt, const FailedAttempt& earlier) {
  // With other hosts, another rank may have the number.
  return attempt.steps && attempt.steps == earlier.steps && attempt.rank == earlier.rank &&
         attempt.name == earlier.name;
}

}  // namespace

FailedAttempt failed_attempt(const RankFailure& failure, const std::string& name, const AttemptTimes& times) {
  return {.name = name,
          .end = describe_end(failure),
          .report = report_lines(failure, name),
          .rank = failure.rank,
          .is_mistake = was_user_mistake(failure.wait_status),
          .steps = failure.steps,
          .killed_from_outside = failure.killed_from_outside,
          .times = times};
}

std::vector<std::string> Restarts::judge(const FailedAttempt& attempt) {
  if (most_ == 0) return {};
  last_ = attempt;
  if (attempt.has_survivors)
    return {"not started again: processes of the job may still run, and write checkpoints or hold memory"};
  if (attempt.is_mistake && attempt.steps.value_or(0) == 0) {
    return {"not started again: " + attempt.name + " reports a mistake of the user" + place_of(attempt) +
            ", which would be there again"};
  }
  if (last_fault_ && !attempt.killed_from_outside && is_repeated(attempt, *last_fault_)) {
    std::vector<std::string> lines = {"not started again: " + attempt.name + " failed" + place_of(attempt) +
                                      " as before, when it was reported thus:"};
    for (const std::string& line : last_fault_->report) lines.push_back("  " + line);
    return lines;
  }
  if (count_ == most_) {
    return {"not started again: this was attempt " + std::to_string(most_ + 1) + " of " +
            std::to_string(most_ + 1) + " (--max_restarts " + std::to_string(most_) + ")"};
  }
  if (!attempt.killed_from_outside) last_fault_ = attempt;
  ++count_;
  is_due_ = true;
  return {};
}

std::string Restarts::describe_start(Clock::time_point started) const {
  const AttemptTimes& times = last_->times;
  return "restart " + std::to_string(count_) + " of " + std::to_string(most_) + ": " + last_->name + " " +
         last_->end + place_of(*last_) + ", found " + seconds_between(times.began, times.found) +
         " after the start; all ranks ended within " + seconds_between(times.found, times.ended) +
         " and started again within " + seconds_between(times.ended, started);
}

}  // namespace zerorun::launcher
