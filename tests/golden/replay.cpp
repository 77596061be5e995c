#include "tests/golden/replay.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>

#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

namespace zerorun::testing {

using nlohmann::json;

namespace {

json traces_in(const std::string& file) {
  return json::parse(std::ifstream(source_folder() / "tests/golden/data" / file));
}

}  // namespace

const json& traces() {
  static const json all = traces_in("traces.json");
  return all;
}

json traces_of_narrow_states() {
  return traces_in("state_traces.json");
}

namespace {

double number(const json& hex) {
  return std::strtod(hex.get<std::string>().c_str(), nullptr);
}

double relative_difference(double found, double expected) {
  if (found == expected) return 0;  // also for infinity, the norm of a skipped step
  return std::abs(found - expected) / std::max(std::abs(expected), 1e-300);
}

// Returns the expected norm. DeepSpeed's stage 3 divides the norm by the new loss scale, which the step has
// already changed. DeepSpeed's other stages and ZeroRun divide it by the scale with which the gradients were
// computed.
double norm_of(const json& trace, const json& norms, size_t step) {
  const double norm = number(norms["steps"][step]["grad_norm"]);
  if (trace["ds_config"]["zero_optimization"]["stage"] != 3 || step == 0) return norm;
  const json& steps = trace["steps"];
  if (!steps[step].contains("loss_scale")) return norm;
  const double before = steps[step - 1]["loss_scale"];
  const double after = steps[step]["loss_scale"];
  return norm * (after / before);
}

// Returns the trace that has the expected norms: `trace` itself or, if DeepSpeed reported no norms in it, the
// trace of another run that has the same norms.
const json& trace_with_norms(const json& trace) {
  if (!trace["steps"][0]["grad_norm"].is_null()) return trace;
  std::string run = trace["name"].get<std::string>().substr(std::string("fp32_s0_").size());
  if (run == "prescale") run = "adamw_clip1";
  if (run == "sgd_mom_nesterov") run = "sgd_mom_nesterov_untested";
  for (const json& other : traces()) {
    const std::string name = other["name"];
    if (name == "fp32_s1_" + run || name == "fp32_s2_" + run) return other;
  }
  FAIL("no trace with norms for " << trace["name"]);
  return trace;
}

void check_betas(const std::vector<std::optional<std::pair<double, double>>>& found, const json& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t group = 0; group < found.size(); ++group) {
    REQUIRE(found[group]);
    CHECK(relative_difference(found[group]->first, expected[group][0]) <= 5e-13);
    CHECK(relative_difference(found[group]->second, expected[group][1]) <= 5e-13);
  }
}

// Returns the l2 norm that DeepSpeed should have for a parameter that has `values` in ZeroRun. In every step
// DeepSpeed's Lion subtracts lr from elements that never have a gradient. These elements are the embedding of
// the last position. No loss depends on them, because the prediction at that position is unused.
double l2_of(const json& trace, const std::string& parameter, const at::Tensor& values) {
  at::Tensor in_float64 = values.to(torch::kDouble, false, true);
  const json& optimizer = trace["ds_config"]["optimizer"];
  if (optimizer["type"] == "Lion" && parameter.ends_with("wpe.weight")) {
    const double lr = optimizer["params"]["lr"];
    const double kept = 1 - lr * optimizer["params"]["weight_decay"].get<double>();
    for (size_t step = 0; step < trace["steps"].size(); ++step) {
      in_float64.select(0, -1).sub_(lr * std::pow(kept, static_cast<double>(step)));
    }
  }
  return in_float64.norm().item<double>();
}

}  // namespace

Tolerance tolerance_of(const std::string& name) {
  if (!name.starts_with("fp32_")) {
    return {.loss = 3e-4, .norm = 3e-3, .matrix = 3e-4, .vector = 2e-2, .noise = 5e-2};
  }
  if (name == "fp32_s2_muon") {
    return {.loss = 1e-6, .norm = 3e-3, .matrix = 1e-5, .vector = 5e-3, .noise = 5e-2};
  }
  return {.loss = name == "fp32_s2_adamw_nobias" ? 1e-5 : 1e-6,
          .norm = 1e-5,
          .matrix = 1e-5,
          .vector = 1e-5,
          .noise = name == "fp32_s2_lion_offopt_cpu" ? 5e-2 : 1e-3};
}

void replay(const json& trace, const Tolerance& tolerance,
            decltype(RunOptions::communicator_for) communicator_for) {
  const std::string name = trace["name"];
  RunOptions options{.world_size = trace["world"],
                     .steps = static_cast<int64_t>(trace["steps"].size()),
                     .bucket_numel = {},
                     .group_weight_decay = {},
                     .inject_inf_steps = trace.value("inject_inf_steps", std::vector<int64_t>()),
                     .communicator_for = std::move(communicator_for)};
  if (trace.contains("raised")) ++options.steps;
  if (trace.contains("groups")) options.group_weight_decay = trace["groups"].get<double>();
  json ds_config = trace["ds_config"];
  const TemporaryFolder folder;
  json& zero = ds_config["zero_optimization"];
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    if (zero.contains(section) && zero[section]["device"] == "nvme") zero[section]["nvme_path"] = folder / "";
  }
  const RunResult run = train_tiny_gpt2(ds_config.dump(), options);
  const json& norms = trace_with_norms(trace);

  double worst_loss = 0;
  double worst_norm = 0;
  for (size_t step = 0; step < trace["steps"].size(); ++step) {
    const json& expected = trace["steps"][step];
    INFO(name << " step " << step);
    const double loss = relative_difference(run.mean_loss(step), number(expected["loss_mean"]));
    CHECK(loss <= tolerance.loss);
    const double norm = relative_difference(run.grad_norms[step], norm_of(trace, norms, step));
    CHECK(norm <= tolerance.norm);
    if (expected.contains("loss_scale")) CHECK(run.loss_scales[step] == expected["loss_scale"]);
    CHECK(run.skipped[step] == expected["skipped"]);
    REQUIRE(run.lrs[step].size() == expected["lr"].size());
    for (size_t group = 0; group < expected["lr"].size(); ++group) {
      const double lr = number(expected["lr"][group]);
      CHECK(std::abs(run.lrs[step][group] - lr) <= 5e-13 * std::abs(lr));
    }
    if (expected.contains("betas")) check_betas(run.betas[step], expected["betas"]);
    worst_loss = std::max(worst_loss, loss);
    worst_norm = std::max(worst_norm, norm);
  }
  CHECK(run.raised.value_or(-1) == trace.value("raised", int64_t{-1}));
  for (const auto& [parameter, values] : run.parameters) {
    INFO(name << " final " << parameter);
    const double l2 = trace["final"].at(parameter)[0];
    // A third of this bias belongs to the attention keys. The gradient of this third is zero except for
    // rounding. Adam divides that gradient by its own magnitude and Lion takes its sign, so the updates are
    // noise.
    const bool noise = parameter.ends_with("attn.c_attn.bias");
    const double found = l2_of(trace, parameter, values);
    const double allowed = noise ? tolerance.noise : values.dim() > 1 ? tolerance.matrix : tolerance.vector;
    CHECK(relative_difference(found, l2) <= allowed);
  }
  std::printf("%-36s loss %.1e  norm %.1e\n", name.c_str(), worst_loss, worst_norm);
}

bool replays_on_one_rank(const json& trace) {
  return !trace["ds_config"].contains("gradient_allreduce_op") && trace["name"] != "fp16_s1_dyn";
}

// Changes a trace of several ranks so that one rank replays it, with more micro-steps. The micro-batches keep
// their order: in each micro-step, the ranks of the trace take the next micro-batches in rank order.
//
// A micro-step divides its loss by the number of micro-steps, so fp16 gradients would be smaller by the
// number of ranks, and some would not overflow. Loss scales that are larger by this number make up for it.
json on_one_rank(json trace) {
  json& config = trace["ds_config"];
  const int ranks = trace["world"];
  config["gradient_accumulation_steps"] = config.value("gradient_accumulation_steps", 1) * ranks;
  if (config.contains("fp16")) {
    json& fp16 = config["fp16"];
    fp16["initial_scale_power"] = fp16.value("initial_scale_power", 16) + static_cast<int>(std::log2(ranks));
    fp16["min_loss_scale"] = fp16.value("min_loss_scale", 1) * ranks;
    if (fp16.contains("loss_scale")) fp16["loss_scale"] = fp16["loss_scale"].get<double>() * ranks;
    for (json& step : trace["steps"]) step["loss_scale"] = step["loss_scale"].get<double>() * ranks;
  }
  trace["world"] = 1;
  return trace;
}

}  // namespace zerorun::testing
