// Executes gather plans and reports violated rules. It knows the rules, not how plan_gathers() makes plans.
// For tests. Callable from any thread: it has no shared state.
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
  int64_t bound() const;  // upper bound for the arena
  std::string text() const;
};

/// Returns the rules that `plan` violates, or an empty string. `all_equal` (all buckets have one size, so the
/// arena never fragments) adds two rules: no eviction is needless or of the wrong bucket, and no gather could
/// have started earlier.
std::string simulate(const GatherCase& input, const GatherPlan& plan, bool all_equal);

}  // namespace zerorun
