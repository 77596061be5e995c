// Every trace of data/traces.json replayed on rank-threads: losses, norms, learning rates and final
// parameters are DeepSpeed's within the tolerances of README.md.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

using nlohmann::json;

const json& traces() {
  static const json all = json::parse(std::ifstream(ZERORUN_SOURCE_DIR "/tests/golden/data/traces.json"));
  return all;
}

double number(const json& hex) {
  return std::strtod(hex.get<std::string>().c_str(), nullptr);
}

double relative_difference(double found, double expected) {
  return std::abs(found - expected) / std::max(std::abs(expected), 1e-300);
}

// Where DeepSpeed reports no norm: the trace of a run that has the same one.
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

void replay(const json& trace) {
  const std::string name = trace["name"];
  RunOptions options{.world_size = trace["world"],
                     .steps = static_cast<int64_t>(trace["steps"].size()),
                     .bucket_numel = {},
                     .group_weight_decay = {}};
  if (trace.contains("groups")) options.group_weight_decay = trace["groups"].get<double>();
  const RunResult run = train_tiny_gpt2(trace["ds_config"].dump(), options);
  const json& norms = trace_with_norms(trace);

  const double loss_tolerance = name == "fp32_s2_adamw_nobias" ? 1e-5 : 1e-6;
  double worst_loss = 0;
  double worst_norm = 0;
  for (size_t step = 0; step < trace["steps"].size(); ++step) {
    const json& expected = trace["steps"][step];
    INFO(name << " step " << step);
    const double loss = relative_difference(run.mean_loss(step), number(expected["loss_mean"]));
    CHECK(loss <= loss_tolerance);
    const double norm = relative_difference(run.grad_norms[step], number(norms["steps"][step]["grad_norm"]));
    CHECK(norm <= 1e-5);
    REQUIRE(run.lrs[step].size() == expected["lr"].size());
    for (size_t group = 0; group < expected["lr"].size(); ++group) {
      const double lr = number(expected["lr"][group]);
      CHECK(std::abs(run.lrs[step][group] - lr) <= 5e-13 * std::abs(lr));
    }
    worst_loss = std::max(worst_loss, loss);
    worst_norm = std::max(worst_norm, norm);
  }
  for (const auto& [parameter, values] : run.parameters) {
    INFO(name << " final " << parameter);
    const double l2 = trace["final"].at(parameter)[0];
    // The keys' part of this bias has a gradient of zero but for rounding, which Adam divides by its own
    // size.
    const bool noise = parameter.ends_with("attn.c_attn.bias");
    CHECK(relative_difference(values.norm().item<double>(), l2) <= (noise ? 1e-3 : 1e-5));
  }
  std::printf("%-36s loss %.1e  norm %.1e\n", name.c_str(), worst_loss, worst_norm);
}

}  // namespace

TEST_CASE("DeepSpeed's traces are reproduced") {
  for (const json& trace : traces()) replay(trace);
}

// DeepSpeed's default keeps all parameters of a model as small as this one.
TEST_CASE("DeepSpeed's stage 3 traces are reproduced when every parameter comes and goes") {
  for (json trace : traces()) {
    if (!trace["name"].get<std::string>().starts_with("fp32_s3_")) continue;
    json& zero = trace["ds_config"]["zero_optimization"];
    zero["stage3_param_persistence_threshold"] = 0;
    zero["stage3_max_live_parameters"] = 30'000;
    zero["stage3_prefetch_bucket_size"] = 10'000;
    replay(trace);
  }
}

}  // namespace zerorun::testing
