// zerorun_plan: the program that `zerorun plan` becomes. It plans a training without running it.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/program.h"
#include "config/check.h"
#include "plan/report.h"

namespace {

using nlohmann::ordered_json;
using zerorun::PlanReport;
using zerorun::PlanRequest;
using zerorun::RankPlan;

// The batch size of the job does not fit other numbers of ranks. What one rank does in a step stays.
ordered_json for_any_world(ordered_json config, const zerorun::BatchConfig& batch) {
  config.erase("train_batch_size");
  config["train_micro_batch_size_per_gpu"] = batch.micro_batch_size_per_gpu;
  config["gradient_accumulation_steps"] = batch.gradient_accumulation_steps;
  return config;
}

class Planner {
 public:
  Planner(const PlanRequest& request, const zerorun::ModelShapes& shapes)
      : request_(request), shapes_(shapes) {}

  zerorun::Config read(const std::string& config, int world_size) const {
    return zerorun::planned_config(config, request_.config, world_size, shapes_.hidden_size);
  }
  RankPlan plan(const std::string& config, int world_size) const {
    // Other numbers of ranks fill other numbers of hosts.
    const int on_host = request_.world_size / request_.hosts;
    return plan_rank(shapes_, read(config, world_size),
                     {.world_size = world_size,
                      .on_gpu = request_.on_gpu,
                      .shares_memory = !request_.on_gpu && world_size <= on_host});
  }
  /// Absent if the configuration is refused.
  std::optional<RankPlan> plan_if_allowed(const ordered_json& config, int world_size) const {
    try {
      return plan(config.dump(), world_size);
    } catch (const zerorun::UserError&) {
      return std::nullopt;
    }
  }

 private:
  const PlanRequest& request_;
  const zerorun::ModelShapes& shapes_;
};

int run(const PlanRequest& request) {
  const std::string text = zerorun::config::read_config_file(request.config);
  const ordered_json config = zerorun::as_json(text, request.config);
  const zerorun::ModelShapes shapes = request.model.empty() ? zerorun::shapes_of_size(request.parameters)
                                                            : zerorun::shapes_of_folder(request.model);
  const Planner planner(request, shapes);
  PlanReport report{.request = request,
                    .parameters = shapes.numel(),
                    .tensors = shapes.parameters.size(),
                    .plan = planner.plan(text, request.world_size),
                    .others = {},
                    .fitting = {}};
  const int most = request.with_others ? std::max(2 * request.world_size, 8) : 0;
  const auto fewest = std::bit_floor(static_cast<unsigned>(std::max(request.world_size / 8, 1)));
  const ordered_json of_any = for_any_world(config, planner.read(text, request.world_size).batch);
  for (int ranks = static_cast<int>(fewest); ranks <= most; ranks *= 2)
    report.others.push_back({.world_size = ranks, .plan = planner.plan_if_allowed(of_any, ranks)});
  if (!report.fits()) {
    report.fitting = zerorun::find_fitting_config(
        config, *request.memory, request.on_gpu,
        [&](const ordered_json& changed) { return planner.plan_if_allowed(changed, request.world_size); });
  }
  const std::string answer = request.json ? to_json(report).dump(2) + "\n" : to_text(report);
  std::fputs(zerorun::printable(answer, "\n\t").c_str(), stdout);
  std::fflush(stdout);
  return report.fits() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    const auto request = zerorun::parse_plan_request(argc, argv);
    return request ? run(*request) : 0;
  });
}
