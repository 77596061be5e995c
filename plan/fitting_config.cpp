#include "plan/fitting_config.h"

#include <algorithm>
#include <utility>

namespace zerorun {
namespace {

using nlohmann::ordered_json;

constexpr char kSection[] = "zero_optimization";

// Keys that are set together.
using Step = std::vector<std::pair<std::string, ordered_json>>;

ordered_json section_of(const ordered_json& config) {
  const auto found = config.find(kSection);
  return found != config.end() && found->is_object() ? *found : ordered_json::object();
}

ordered_json value_of(const ordered_json& section, const std::string& key) {
  return section.contains(key) ? section.at(key) : ordered_json();
}

ordered_json on_device(ordered_json offload, const std::string& device) {
  if (!offload.is_object()) offload = ordered_json::object();
  offload["device"] = device;
  if (device == "nvme" && !offload.contains("nvme_path")) offload["nvme_path"] = "/local_nvme";
  return offload;
}

std::string device_of(const ordered_json& section, const std::string& key) {
  const ordered_json offload = value_of(section, key);
  return offload.is_object() ? offload.value("device", std::string("none")) : "none";
}

// The possible changes, in the order in which they are tried.
std::vector<Step> steps_from(const ordered_json& section, bool on_gpu) {
  const ordered_json given = value_of(section, "stage");
  const int stage = given.is_number_integer() ? given.get<int>() : 0;
  std::vector<Step> steps;
  for (int higher = stage + 1; higher <= 3; ++higher) steps.push_back({{"stage", higher}});
  const auto offload = [&](const std::string& key, const std::string& device) {
    const std::string now = device_of(section, key);
    if (now != "nvme" && now != device) steps.push_back({{key, on_device(value_of(section, key), device)}});
  };
  if (on_gpu) offload("offload_optimizer", "cpu");
  Step buckets;
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size",
                          "stage3_max_live_parameters"}) {
    const bool is_live = std::string(key) == "stage3_max_live_parameters";
    const int64_t smaller = is_live ? 100'000'000 : 5'000'000;
    const ordered_json now = value_of(section, key);
    if (!now.is_number() || now.get<double>() > static_cast<double>(smaller))
      buckets.emplace_back(key, smaller);
  }
  if (!buckets.empty()) steps.push_back(std::move(buckets));
  if (on_gpu) offload("offload_param", "cpu");
  offload("offload_optimizer", "nvme");
  offload("offload_param", "nvme");
  return steps;
}

ordered_json changed(ordered_json config, const std::vector<Step>& steps) {
  ordered_json section = section_of(config);
  for (const Step& step : steps) {
    for (const auto& [key, value] : step) section[key] = value;
  }
  config[kSection] = std::move(section);
  return config;
}

std::vector<ConfigChange> changes_between(const ordered_json& before, const ordered_json& after) {
  std::vector<ConfigChange> changes;
  for (const auto& [key, value] : after.items()) {
    const ordered_json old = value_of(before, key);
    if (old == value) continue;
    changes.push_back(
        {.key = key, .before = old.is_null() ? std::string() : old.dump(), .after = value.dump()});
  }
  return changes;
}

}  // namespace

std::optional<FittingConfig> find_fitting_config(const ordered_json& config, int64_t memory, bool on_gpu,
                                                 const PlanOf& plan_of) {
  const std::vector<Step> all = steps_from(section_of(config), on_gpu);
  std::vector<Step> made;
  std::optional<RankPlan> fitting;
  const auto try_with = [&](const std::vector<Step>& steps) {
    std::optional<RankPlan> plan = plan_of(changed(config, steps));
    if (plan && plan->memory() > memory) plan.reset();
    return plan;
  };
  for (const Step& step : all) {
    made.push_back(step);
    std::optional<RankPlan> plan = plan_of(changed(config, made));
    if (!plan) {  // this configuration may not be changed in this way
      made.pop_back();
    } else if (plan->memory() <= memory) {
      fitting = std::move(plan);
      break;
    }
  }
  if (!fitting) return std::nullopt;
  for (size_t index = 0; index + 1 < made.size();) {
    std::vector<Step> fewer = made;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(index));
    if (auto plan = try_with(fewer)) {
      made = std::move(fewer);
      fitting = std::move(plan);
    } else {
      ++index;
    }
  }
  return FittingConfig{.changes = changes_between(section_of(config), section_of(changed(config, made))),
                       .plan = *fitting};
}

std::string describe(const std::vector<ConfigChange>& changes) {
  std::string text = std::string("  \"") + kSection + "\": {\n";
  for (const ConfigChange& change : changes) {
    if (!change.before.empty()) text += "-   \"" + change.key + "\": " + change.before + ",\n";
    text += "+   \"" + change.key + "\": " + change.after + ",\n";
  }
  return text + "  }\n";
}

}  // namespace zerorun
