// Executes plans of gathers and says what is wrong with them. It knows the rules, not how plans are made. For
// tests; any thread, nothing is shared.
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
  int64_t bound() const;  // of the arena
  std::string text() const;
};

/// What is wrong with `plan`, or nothing. With `all_equal` (buckets of one size, which never fragment the
/// arena) also: no eviction is needless or of the wrong bucket, and no gather could have started earlier.
std::string simulate(const GatherCase& input, const GatherPlan& plan, bool all_equal);

}  // namespace zerorun
