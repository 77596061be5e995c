// Searches for the smallest change of a configuration with which a rank fits into memory. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/report.h"

namespace zerorun {

/// Plans a configuration; absent if it is refused.
using PlanOf = std::function<std::optional<RankPlan>(const nlohmann::ordered_json& config)>;

/// Makes changes in the order of their cost until the plan's memory is at most `memory`, and takes back those
/// that it does without: a higher stage, optimizer states in host memory, smaller buckets, parameters in host
/// memory, then files for both. The first two kinds of host memory help on GPUs only. Absent if none helps.
std::optional<FittingConfig> find_fitting_config(const nlohmann::ordered_json& config, int64_t memory,
                                                 bool on_gpu, const PlanOf& plan_of);

/// The changes as a diff of JSON.
std::string describe(const std::vector<ConfigChange>& changes);

}  // namespace zerorun
