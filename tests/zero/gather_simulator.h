// Executes a gather plan and reports the rules that it violates. The simulator knows the rules, but not how
// plan_gathers() makes plans. Its functions are pure, so any thread may call them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero/gather_schedule.h"

namespace zerorun {

struct GatherCase {
  std::vector<std::vector<int>> uses;
  std::vector<int64_t> numel;  // by bucket
  GatherLimits limits;

  GatherPlan plan() const { return plan_gathers(uses, numel, limits); }
  int64_t total() const;
  int64_t size(const std::vector<int>& buckets) const;
  int64_t bound() const;  // upper bound of the arena's size, in elements
  std::string text() const;
};

/// Returns the rules that `plan` violates, or an empty string. `all_equal` tells that all buckets have one
/// size, so the arena never fragments. If so, two more rules apply: each eviction is necessary and takes the
/// bucket whose next use is furthest ahead, and each gather starts as early as the limits allow.
std::string simulate(const GatherCase& input, const GatherPlan& plan, bool all_equal);

}  // namespace zerorun
