#include "plan/training_plan.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "activations/forward_state.h"
#include "base/error.h"
#include "base/mesh_sizes.h"
#include "config/check.h"
#include "engine/hidden_size.h"
#include "plan/fitting_config.h"
#include "plan/meta_operators.h"
#include "plan/planned_config.h"
#include "plan/rank_plan.h"

namespace zerorun {
namespace {

using nlohmann::ordered_json;

// The batch size of the job does not fit other numbers of ranks. What one rank does in a step stays.
ordered_json for_any_world(ordered_json config, const BatchConfig& batch) {
  config.erase("train_batch_size");
  config["train_micro_batch_size_per_gpu"] = batch.micro_batch_size_per_gpu;
  config["gradient_accumulation_steps"] = batch.gradient_accumulation_steps;
  return config;
}

class Planner {
 public:
  Planner(PlannedTraining training, std::string origin, const PlanRequest& request)
      : training_(std::move(training)), origin_(std::move(origin)), request_(request) {
    if (training_.forward || training_.options.pipeline) operators_ = std::make_unique<MetaOperators>();
    if (!training_.options.hidden_size) training_.options.hidden_size = hidden_size_of(training_.model);
  }

  Config read(const std::string& config, int world_size) const {
    Config read = planned_config(config, origin_,
                                 {.world_size = world_size,
                                  .mesh = training_.options.mesh,
                                  .arguments = training_.options.arguments,
                                  .hidden_size = training_.options.hidden_size});
    if (training_.complete) training_.complete(read);
    if (!read.optimizer) read.optimizer = AdamConfig();
    return read;
  }
  RankPlan plan(const std::string& text, int world_size) {
    const Config config = read(text, world_size);
    // Other numbers of ranks fill other numbers of hosts.
    const int on_host = request_.world_size / request_.hosts;
    ImaginedRanks ranks{.world_size = world_size,
                        .on_gpu = request_.on_gpu,
                        .shares_memory = !request_.on_gpu && world_size <= on_host,
                        .ranks_on_host = on_host};
    if (config.mesh && config.mesh->pipeline > 1) return plan_stages(config, ranks);
    if (training_.forward && config.precision.autocast) {
      forget_forward("the config has torch_autocast, and LibTorch casts no tensors without memory");
    }
    try {
      return plan_rank(training_, config, ranks);
    } catch (const ForwardFailed& error) {
      forget_forward(std::string("the forward or backward cannot run without values: ") + error.what());
    }
    return plan_rank(training_, config, ranks);
  }
  /// Absent if the configuration is refused.
  std::optional<RankPlan> plan_if_allowed(const ordered_json& config, int world_size) {
    try {
      return plan(config.dump(), world_size);
    } catch (const UserError&) {
      return std::nullopt;
    }
  }
  const std::string& unknown_activations() const { return unknown_; }

 private:
  // The plan of the stage that takes most. Stages send each other the shapes of activations, so they are
  // planned in their order.
  RankPlan plan_stages(const Config& config, ImaginedRanks ranks) const {
    const MeshSizes sizes = config.mesh->resolved(ranks.world_size);
    ranks.mail = std::make_shared<ImaginedMail>();
    RankPlan largest;
    std::vector<int64_t> memory;
    for (int stage = 0; stage < sizes.pipeline; ++stage) {
      ranks.rank = rank_at({.pipeline = stage}, sizes);
      RankPlan plan = plan_rank(training_, config, ranks);
      memory.push_back(plan.memory());
      if (stage == 0 || plan.memory() > largest.memory()) largest = std::move(plan);
    }
    largest.stages = std::move(memory);
    return largest;
  }
  void forget_forward(std::string why) {
    training_.forward = nullptr;
    unknown_ = std::move(why);
  }

  PlannedTraining training_;
  std::string origin_;
  const PlanRequest& request_;
  std::unique_ptr<MetaOperators> operators_;  // as long as the forward may run
  std::string unknown_;
};

void check(const PlanRequest& request) {
  if (request.endurance && !request.step_seconds)
    throw UserError("plan: --endurance needs the time of a step: give --step-seconds S too");
  if (request.world_size < 1 || request.hosts < 1)
    throw UserError("plan: expected at least one rank (--world) and one host (--hosts)");
  if (request.world_size % request.hosts != 0)
    throw UserError("plan: --world " + std::to_string(request.world_size) + " ranks do not divide among " +
                    std::to_string(request.hosts) + " hosts (--hosts): give a multiple");
}

PlanReport empty_report(const Model& model, const PlanRequest& request) {
  PlanReport report{.request = request};
  std::set<const void*> seen;
  for (const auto& [name, parameter] : model.parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    report.parameters += parameter.numel();
    ++report.tensors;
  }
  return report;
}

}  // namespace

PlanReport plan_training(PlannedTraining training, const std::string& text, const std::string& origin,
                         const PlanRequest& request) {
  check(request);
  const ordered_json config = as_json(text, origin);
  PlanReport report = empty_report(training.model, request);
  const GeneratorStates generators({});
  Planner planner(std::move(training), origin, request);
  report.plan = planner.plan(text, request.world_size);
  report.unknown_activations = planner.unknown_activations();
  const int most = request.with_others ? std::max(2 * request.world_size, 8) : 0;
  const auto fewest = std::bit_floor(static_cast<unsigned>(std::max(request.world_size / 8, 1)));
  const ordered_json of_any = for_any_world(config, planner.read(text, request.world_size).batch);
  for (int ranks = static_cast<int>(fewest); ranks <= most; ranks *= 2)
    report.others.push_back({.world_size = ranks, .plan = planner.plan_if_allowed(of_any, ranks)});
  if (!report.fits()) {
    report.fitting = find_fitting_config(
        config, *request.memory, request.on_gpu,
        [&](const ordered_json& changed) { return planner.plan_if_allowed(changed, request.world_size); });
  }
  generators.restore();
  return report;
}

PlanReport plan_training(torch::nn::Module& model, const std::filesystem::path& ds_config,
                         const PlanRequest& request, PlannedForward forward, InitializeOptions options) {
  return plan_training(
      {.model = model_of(model), .forward = std::move(forward), .options = std::move(options)},
      config::read_config_file(ds_config), ds_config, request);
}

}  // namespace zerorun
