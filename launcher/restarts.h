// Decides whether the ranks of a job that has failed are started again (--max_restarts). Owned by launch(),
// used on the main thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rank_failure.h"

namespace zerorun::launcher {

/// The environment variable with the number of restarts so far.
inline constexpr char kRestartsVariable[] = "ZERORUN_RESTARTS";

struct AttemptTimes {
  using Clock = std::chrono::steady_clock;
  Clock::time_point began, found, ended;  // ranks are started; the failure is known; all ranks have ended
};

/// How one attempt to run the job has ended.
struct FailedAttempt {
  std::string name;                   // of what failed first: "rank 3", "rank 3 on worker-1", "worker-1"
  std::string end;                    // "exited with code 3"
  std::vector<std::string> report;    // all lines for the user
  std::optional<int> rank = {};       // absent: a host or a connection failed, not a rank
  bool is_mistake = false;            // of the user
  std::optional<int64_t> steps = {};  // as in RankFailure
  bool killed_from_outside = false;
  bool has_survivors = false;  // processes that may still hold memory, files and ports
  AttemptTimes times = {};
};

/// Called once after a failure, when all ranks have ended and nobody wants to end the job. Returns lines for
/// the user.
using Judge = std::function<std::vector<std::string>(const FailedAttempt&)>;

/// The attempt that ended with `failure`. `name`: as in report_lines().
FailedAttempt failed_attempt(const RankFailure& failure, const std::string& name, const AttemptTimes& times);

class Restarts {
 public:
  explicit Restarts(int most) : most_(most) {}

  /// Decides about an attempt. Returns lines for the user that say why the ranks are not started again; none
  /// if they are, or if nobody has asked for restarts.
  std::vector<std::string> judge(const FailedAttempt& attempt);
  /// Whether judge() has decided since the last call to start the ranks again.
  bool take_due() { return std::exchange(is_due_, false); }
  /// The line for the user, once the ranks have been started again.
  std::string describe_start(AttemptTimes::Clock::time_point started) const;
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
