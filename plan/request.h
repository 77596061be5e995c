// What a plan is asked for: the job, the memory of its ranks, and how the answer is shown. Plain values.
#pragma once

#include <cstdint>
#include <optional>

namespace zerorun {

struct PlanRequest {
  int world_size = 1;
  int hosts = 1;                       // a divisor of world_size
  bool on_gpu = false;                 // else on CPUs
  std::optional<int64_t> memory = {};  // bytes of each rank
  std::optional<double> step_seconds = {};
  std::optional<double> endurance = {};  // bytes
  bool with_others = true;               // other numbers of ranks
  bool json = false;
};

/// The place of "--plan" on a program's command line, or `argc`.
int find_plan(int argc, const char* const* argv);
/// Parses the options behind "--plan", which is argv[0]. Absent if the help was asked for, which is printed.
/// Throws UserError for a mistake on the command line.
std::optional<PlanRequest> parse_plan_request(int argc, const char* const* argv);

}  // namespace zerorun
