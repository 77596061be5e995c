// Trainings of restarted_program under `zerorun --max_restarts`, and what they must have in common with one
// that nobody disturbs. Only the test's thread may use it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/launcher/launched.h"

namespace zerorun::testing {

inline constexpr int kRestartedRanks = 2;

// How a training runs.
struct Way {
  std::string stage = "2", precision = "fp32";
  int64_t save_every = 3;
  bool holds = false;  // generations in memory
  int64_t kills = 12;
  int64_t steps = 150;
  std::vector<std::string> options = {};  // more of the launcher's
};

Launched start(const Way& way, int64_t restarts);

struct Log {
  std::map<int64_t, std::string> steps;               // what a rank wrote of each step
  std::map<std::string, std::vector<double>> times;   // "began", "read", "stepped", by attempt
  std::vector<std::pair<int64_t, int64_t>> attempts;  // first and last step of each
};

// CHECKs that a step that was done again was the same to the bit, and that attempts leave no gap.
Log read_log(const std::filesystem::path& file);

double seconds_now();

// Waits until this attempt has done a step, or a little if it does not.
void await_steps(const Launched& job);

// The processes of the ranks.
std::vector<pid_t> ranks_of(const Launched& job);

// A training that nobody disturbs.
struct Calm {
  std::vector<Log> logs;
  std::string end;
};

Calm run_calmly(const Way& way);

// CHECKs that losses, samples and final weights are those of the calm training. Returns the logs.
std::vector<Log> check_same(const Launched& job, const Way& way, const Calm& calm);

// CHECKs that at most one step that had ended was done again after each kill, unless a save was under way. A
// step is logged before it ends, and the next one may have been logged when a rank had not held it yet.
void check_repeats(const std::vector<Log>& logs, int64_t save_every);

}  // namespace zerorun::testing
