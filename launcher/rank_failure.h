// The first rank of a job that failed, and the lines that report it. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zerorun::launcher {

struct RankFailure {
  int rank = 0;                          // in the job
  int wait_status = 0;                   // from waitpid()
  std::string cause;                     // empty if not known
  std::vector<std::string> last_lines;   // of its stderr, oldest first
  std::vector<std::string> memory = {};  // what its memory was used for, if it ran out
  /// Optimizer steps that the rank's engine had ended in this attempt; absent: the rank had no engine.
  std::optional<int64_t> steps = {};
  /// Somebody sent SIGKILL or SIGSTOP: the program is not to blame, however often it happens.
  bool killed_from_outside = false;
  bool is_hung = false;  // it has not ended: it makes no progress, and `wait_status` is made up

  bool operator==(const RankFailure&) const = default;
};

/// How the rank has failed: "killed by signal 9 (SIGKILL)", "hung".
std::string describe_end(const RankFailure& failure);
/// The lines of the report about `failure`. `name`: how the report calls the rank ("rank 3 on worker-1").
std::vector<std::string> report_lines(const RankFailure& failure, const std::string& name);

}  // namespace zerorun::launcher
