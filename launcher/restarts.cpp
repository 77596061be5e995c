#include "launcher/restarts.h"

#include <array>
#include <cstdio>

#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

std::string name_of(const FailedAttempt& attempt) {
  return "rank " + std::to_string(attempt.failure.rank);
}

// " before its first step", " in step 8"; "" if the launcher does not know.
std::string place_of(const FailedAttempt& attempt) {
  if (!attempt.steps) return {};
  return *attempt.steps == 0 ? " before the end of its first step"
                             : " in step " + std::to_string(*attempt.steps + 1);
}

std::string seconds_between(FailedAttempt::Clock::time_point begin, FailedAttempt::Clock::time_point end) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f s", std::chrono::duration<double>(end - begin).count());
  return text.data();
}

bool is_repeated(const FailedAttempt& attempt, const FailedAttempt& earlier) {
  return attempt.steps && attempt.steps == earlier.steps && attempt.failure.rank == earlier.failure.rank;
}

}  // namespace

std::vector<std::string> Restarts::judge(const FailedAttempt& attempt) {
  if (most_ == 0) return {};
  last_ = attempt;
  if (was_user_mistake(attempt.failure.wait_status) && attempt.steps.value_or(0) == 0) {
    return {"not started again: " + name_of(attempt) + " reports a mistake of the user" + place_of(attempt) +
            ", which would be there again"};
  }
  if (last_fault_ && !attempt.killed_from_outside && is_repeated(attempt, *last_fault_)) {
    std::vector<std::string> lines = {"not started again: " + name_of(attempt) + " failed" +
                                      place_of(attempt) + " as before, when it was reported thus:"};
    for (const std::string& line : report_lines(last_fault_->failure, name_of(*last_fault_)))
      lines.push_back("  " + line);
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

std::string Restarts::describe_start(FailedAttempt::Clock::time_point started) const {
  return "restart " + std::to_string(count_) + " of " + std::to_string(most_) + ": " + name_of(*last_) + " " +
         describe_end(last_->failure) + place_of(*last_) + ", found " +
         seconds_between(last_->began, last_->found) + " after the start; all ranks ended within " +
         seconds_between(last_->found, last_->ended) + " and started again within " +
         seconds_between(last_->ended, started);
}

}  // namespace zerorun::launcher
