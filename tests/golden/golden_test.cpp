// Replays every trace of data/traces.json on rank-threads. Losses, norms, learning rates and final parameters
// must equal DeepSpeed's within the tolerances of README.md.
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "tests/golden/replay.h"
#include "tests/support/settings.h"

namespace zerorun::testing {

using nlohmann::json;

namespace {

// Chooses the traces that are replayed in another way too: with tries_all() all, otherwise the first of each
// precision, stage, accumulation and home of states. Their optimizers, clippings and schedules are those of
// the first test case.
class Chosen {
 public:
  bool operator()(const json& trace) {
    const json& config = trace["ds_config"];
    const json& zero = config["zero_optimization"];
    std::string kind = trace["name"].get<std::string>().substr(0, 7);  // such as fp32_s2
    kind += config.value("gradient_accumulation_steps", json()).dump();
    for (const char* section : {"offload_optimizer", "offload_param"})
      kind += zero.value(section, json::object()).value("device", json()).dump();
    return seen_.insert(kind).second || tries_all();
  }

 private:
  std::set<std::string> seen_;
};

}  // namespace

TEST_CASE("DeepSpeed's traces are reproduced") {
  for (const json& trace : traces()) replay(trace, tolerance_of(trace["name"]));
}

// Lowers the limits. With DeepSpeed's default persistence threshold, all parameters of this small model would
// stay gathered.
TEST_CASE("DeepSpeed's stage 3 traces are reproduced when every parameter is gathered and released") {
  Chosen is_chosen;
  for (json trace : traces()) {
    if (trace["ds_config"]["zero_optimization"]["stage"] != 3 || !is_chosen(trace)) continue;
    json& zero = trace["ds_config"]["zero_optimization"];
    zero["stage3_param_persistence_threshold"] = 0;
    zero["stage3_max_live_parameters"] = 30'000;
    zero["stage3_prefetch_bucket_size"] = 10'000;
    replay(trace, tolerance_of(trace["name"]));
  }
}

TEST_CASE("DeepSpeed's traces of offload are reproduced with optimizer states in files") {
  int replayed = 0;
  for (json trace : traces()) {
    json& zero = trace["ds_config"]["zero_optimization"];
    if (!zero.contains("offload_optimizer") || zero["offload_optimizer"]["device"] != "cpu") continue;
    zero["offload_optimizer"] = {{"device", "nvme"}};
    replay(trace, tolerance_of(trace["name"]));
    ++replayed;
  }
  CHECK(replayed > 10);
}

TEST_CASE(
    "DeepSpeed's traces of stage 3 with offload are reproduced with all slices of parameters in files") {
  int replayed = 0;
  for (json trace : traces()) {
    json& zero = trace["ds_config"]["zero_optimization"];
    if (zero["stage"] != 3 || !(zero.contains("offload_optimizer") || zero.contains("offload_param")))
      continue;
    if (zero.contains("offload_optimizer")) zero["offload_optimizer"] = {{"device", "nvme"}};
    zero["offload_param"] = {{"device", "nvme"}, {"max_in_cpu", 0}};
    zero["stage3_param_persistence_threshold"] = 0;
    replay(trace, tolerance_of(trace["name"]));
    ++replayed;
  }
  CHECK(replayed >= 7);
}

TEST_CASE("DeepSpeed's traces of bfloat16 weights and optimizer states are followed") {
  for (const json& trace : traces_of_narrow_states())
    replay(trace, {.loss = 3e-4, .norm = 3e-3, .matrix = 2e-2, .vector = 5e-2, .noise = 0.5});
}

// The tests on a single GPU (cuda/gpu_training_test.cpp) replay traces of several ranks in this way.
TEST_CASE("One rank with gradient accumulation reproduces the traces of several ranks") {
  Chosen is_chosen;
  for (const json& trace : traces()) {
    const std::string name = trace["name"];
    if (replays_on_one_rank(trace) &&
        (name.starts_with("fp32_s2") || name.starts_with("bf16_s2") || name.starts_with("fp16_s")) &&
        is_chosen(trace)) {
      replay(on_one_rank(trace), tolerance_of(name));
    }
  }
}

}  // namespace zerorun::testing
