// The answer of `zerorun plan`, as text and as JSON. Plain values; pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/fitting_config.h"
#include "plan/rank_plan.h"
#include "plan/request.h"

namespace zerorun {

struct PlanOfWorld {
  int world_size;
  std::optional<RankPlan> plan;  // absent: the configuration does not allow this number of ranks
};

struct PlanReport {
  PlanRequest request;
  int64_t parameters = 0;
  size_t tensors = 0;
  RankPlan plan;
  std::vector<PlanOfWorld> others;
  /// Absent if the plan fits, or nothing makes it fit.
  std::optional<FittingConfig> fitting;

  bool fits() const { return !request.memory || plan.memory() <= *request.memory; }
};

std::string to_text(const PlanReport& report);
nlohmann::ordered_json to_json(const PlanReport& report);

}  // namespace zerorun
