// Tests that training continues from DeepSpeed's checkpoints, at any world size and stage. The loaded weights
// have DeepSpeed's bits. The next steps equal those of DeepSpeed's uninterrupted run within the tolerances of
// README.md.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>

#include "convert/import_checkpoint.h"
#include "tests/convert/deepspeed_cases.h"
#include "tests/convert/fixture_hash.h"
#include "tests/golden/replay.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

using nlohmann::json;

std::string hash_of(const at::Tensor& values) {
  return hash_of_fixture({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

// FNV-1a hashes of weights, by parameter name.
using Hashes = std::map<std::string, std::string>;

Hashes expected_weights(const json& truth) {
  Hashes hashes;
  for (const auto& [name, tensor] : truth.items()) {
    if (name.starts_with("master.")) hashes.emplace(name.substr(7), tensor["fnv1a"]);
    if (name.starts_with("trained.")) hashes[name.substr(8)] = tensor["fnv1a"];
  }
  return hashes;
}

Hashes weights_of(torch::nn::Module& model) {
  Hashes hashes;
  for (const auto& parameter : model.named_parameters())
    hashes[parameter.key()] = hash_of(parameter->detach().clone());
  return hashes;
}

// Returns the expected steps. For the universal checkpoint, there is also a run that DeepSpeed resumed at
// another world size, with another global batch. That run's steps are expected at its world size. At all
// other world sizes, the steps of the uninterrupted run are expected.
const json& steps_at(const json& facts, int world_size) {
  for (const json& resumed : facts["resumed"]) {
    if (world_size != facts["world_size"] && resumed["world_size"] == world_size) return resumed["steps"];
  }
  return facts["uninterrupted"];
}

void resume(const DeepSpeedCase& one, const json& ds_config, int world_size) {
  const TemporaryFolder folder;
  import_checkpoint(local_file_system(), read_deepspeed_checkpoint(local_file_system(), one.checkpoint()),
                    folder / "imported", "");
  const json& expected = steps_at(one.facts, world_size);
  RunOptions options{
      .world_size = world_size,
      .steps = static_cast<int64_t>(expected.size()) + one.facts["at_save"]["global_steps"].get<int64_t>(),
      .resume_from = folder / "imported",
      .first_step = one.facts["at_save"]["global_steps"]};
  if (!one.facts["group_weight_decay"].is_null())
    options.group_weight_decay = one.facts["group_weight_decay"];
  Hashes loaded;
  options.before_training = [&](torch::nn::Module& model, int rank) {
    const Hashes hashes = weights_of(model);  // on all ranks, since reading weights may gather them
    if (rank == 0) loaded = hashes;
  };
  const RunResult run = train_tiny_gpt2(ds_config.dump(), options);
  CHECK(loaded == expected_weights(one.facts["truth"]));
  const Tolerance tolerance = tolerance_of(one.name());
  for (const json& step : expected) {
    const int64_t index = step["step"];
    INFO("step " << index);
    const double loss = step["loss"];
    CHECK(std::abs(run.mean_loss(static_cast<size_t>(index)) - loss) <= tolerance.loss * loss);
    const auto at = static_cast<size_t>(index - options.first_step);
    CHECK(run.lrs[at] == step["lr"].get<std::vector<double>>());
    if (step["grad_norm"].is_null()) continue;
    const double norm = step["grad_norm"];
    CHECK(std::abs(run.grad_norms[at] - norm) <= tolerance.norm * norm);
  }
}

}  // namespace

TEST_CASE("Training continues from DeepSpeed's checkpoints as in DeepSpeed") {
  for (const DeepSpeedCase& one : deepspeed_cases()) {
    INFO(one.name());
    resume(one, one.facts["ds_config"], one.facts["world_size"]);
  }
}

TEST_CASE("Training goes on from DeepSpeed's checkpoints at other world sizes with the same global batch") {
  for (const DeepSpeedCase& one : deepspeed_cases()) {
    const int world_size = one.facts["world_size"];
    json ds_config = one.facts["ds_config"];
    const int samples = ds_config["train_micro_batch_size_per_gpu"].get<int>() * world_size;
    for (const int other : {1, 2, 3}) {
      if (other == world_size || samples % other != 0) continue;
      INFO(one.name() << " on " << other << " ranks");
      ds_config["train_micro_batch_size_per_gpu"] = samples / other;
      resume(one, ds_config, other);
    }
  }
}

TEST_CASE("Training continues from a universal checkpoint at the world size at which DeepSpeed resumed it") {
  const DeepSpeedCase one = deepspeed_case("universal_fp32_s2_w2");
  resume(one, one.facts["ds_config"], 3);
}

TEST_CASE("Training goes on from DeepSpeed's checkpoints at every stage, and with offload") {
  for (const char* name : {"fp32_s1_w3", "fp32_s3_w3", "bf16_s3_w2"}) {
    const DeepSpeedCase one = deepspeed_case(name);
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool offloads : {false, true}) {
        if (offloads && stage == 0) continue;
        INFO(name << " at stage " << stage << (offloads ? " with offload" : ""));
        json ds_config = one.facts["ds_config"];
        ds_config["zero_optimization"]["stage"] = stage;
        if (offloads) ds_config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
        resume(one, ds_config, one.facts["world_size"]);
      }
    }
  }
}

}  // namespace zerorun::testing
