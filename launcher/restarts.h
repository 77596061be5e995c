// Decides whether the ranks of a job that has failed are started again (--max_restarts). Owned by launch(),
// used on the main thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rank_failure.h"

namespace zerorun::launcher {

/// The environment variable with the number of restarts so far.
inline constexpr char kRestartsVariable[] = "ZERORUN_RESTARTS";

/// How one attempt to run the job has ended.
struct FailedAttempt {
  using Clock = std::chrono::steady_clock;

  RankFailure failure;
  /// Optimizer steps that the rank's engine had ended in this attempt; absent: the rank had no engine.
  std::optional<int64_t> steps;
  /// Somebody sent SIGKILL or SIGSTOP: the program is not to blame, however often it happens.
  bool killed_from_outside = false;
  Clock::time_point began, found, ended;  // ranks are started; the failure is known; all ranks have ended
};

class Restarts {
 public:
  explicit Restarts(int most) : most_(most) {}

  /// Decides about an attempt. Returns lines for the user that say why the ranks are not started again; none
  /// if they are, or if nobody has asked for restarts.
  std::vector<std::string> judge(const FailedAttempt& attempt);
  /// Whether judge() has decided since the last call to start the ranks again.
  bool take_due() { return std::exchange(is_due_, false); }
  /// The line for the user, once the ranks have been started again.
  std::string describe_start(FailedAttempt::Clock::time_point started) const;
  /// Restarts so far, with one that is due.
  int count() const { return count_; }

 private:
  int most_;
  int count_ = 0;
  bool is_due_ = false;
  std::optional<FailedAttempt> last_;        // the attempt that judge() saw last
  std::optional<FailedAttempt> last_fault_;  // likewise, without those that were killed from outside
};

}  // namespace zerorun::launcher
