// Tests that an engine at any stage loads small DeepSpeed checkpoints that contain a frozen parameter and
// buffers, and that the loss scale continues as in DeepSpeed.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "convert/import_checkpoint.h"
#include "optim/loss_scaler.h"
#include "tests/convert/fixture_hash.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path folder_of(const std::string& name) {
  return fs::path(ZERORUN_SOURCE_DIR "/tests/convert/data") / name;
}

json facts_of(const std::string& name) {
  std::ifstream file(folder_of(name) / "truth.json");
  return json::parse(file);
}

DeepSpeedCheckpoint source_of(const std::string& name) {
  return read_deepspeed_checkpoint(local_file_system(), folder_of(name) / "checkpoint");
}

// The model of the checkpoints, with other initial values.
struct FrozenNetImpl : torch::nn::Module {
  FrozenNetImpl() {
    embed = register_module("embed", torch::nn::Linear(6, 5));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(false)));
    embed->weight.requires_grad_(false);
    seen = register_buffer("seen", torch::zeros({}, torch::kLong));
    scale = register_buffer("scale", torch::zeros({7}));
    fill(*this, 3);
  }
  torch::nn::Linear embed{nullptr}, head{nullptr};
  at::Tensor seen, scale;
};
TORCH_MODULE(FrozenNet);

std::string hash_of(const at::Tensor& values, const std::string& dtype) {
  const std::map<std::string, at::ScalarType> dtypes = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}, {"int64", at::kLong}};
  const at::Tensor whole = values.detach().to(dtypes.at(dtype)).clone().contiguous();
  return hash_of_fixture({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
}

using Hashes = std::map<std::string, std::string>;

// Returns the expected hash of each parameter and buffer. The values of trained parameters are the master
// weights, rounded to the training dtype `round_to`.
Hashes expected_of(const DeepSpeedCheckpoint& source, const json& truth, at::ScalarType round_to) {
  Hashes hashes;
  for (const auto& [name, tensor] : truth.items()) {
    const size_t dot = name.find('.');
    const std::string kind = name.substr(0, dot), parameter = name.substr(dot + 1);
    if (kind == "frozen" || kind == "buffer") hashes[parameter] = tensor["fnv1a"];
    if (kind != "master") continue;
    at::Tensor values = torch::empty(tensor["shape"].get<std::vector<int64_t>>());
    read(source.parameters.at(parameter).states.at(round_to == at::kFloat ? "value" : "master"), 0,
         {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    values = values.to(round_to);
    hashes[parameter] =
        hash_of_fixture({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  return hashes;
}

}  // namespace

TEST_CASE("Frozen parameters and buffers that DeepSpeed saved load at every stage") {
  const std::map<std::string, at::ScalarType> dtypes = {
      {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  for (const std::string name :
       {"frozen_fp32_s0_w2", "frozen_fp32_s1_w2", "frozen_bf16_s1_w2", "frozen_bf16_s3_w2",
        "frozen_fp16_s2_w2", "frozen_fp16_s3_w2", "exclude_fp32_s2_w2"}) {
    const TemporaryFolder folder;
    const DeepSpeedCheckpoint source = source_of(name);
    import_checkpoint(local_file_system(), source, folder / "out", "");
    json facts = facts_of(name);
    const json& truth = facts["truth"];
    Hashes expected = expected_of(source, truth, dtypes.at(source.facts.precision));
    const bool leaves_out_frozen = name.starts_with("exclude");
    if (leaves_out_frozen)  // the model keeps its initial values
      expected["embed.weight"] = hash_of(FrozenNet()->embed->weight, "float32");
    CHECK(expected.size() == 5);
    for (const int stage : {0, 1, 2, 3}) {
      for (const int world : {1, 2}) {
        INFO(name << " at stage " << stage << " on " << world << " ranks");
        facts["ds_config"]["zero_optimization"]["stage"] = stage;
        Hashes found;
        double scale = 0;
        run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
          const int rank = communicator->rank();
          FrozenNet model;
          Engine engine = make_engine(*model, facts["ds_config"].dump(), std::move(communicator));
          engine.load_checkpoint(folder / "out", "", {.strict = !leaves_out_frozen});
          Hashes hashes;
          for (const auto& parameter : model->named_parameters()) {
            const bool is_frozen = truth.contains("frozen." + parameter.key());
            const std::string dtype = is_frozen ? truth["frozen." + parameter.key()]["dtype"]
                                      : source.facts.precision == "fp32" ? "float32"
                                      : source.facts.precision == "bf16" ? "bfloat16"
                                                                         : "float16";
            hashes[parameter.key()] = hash_of(*parameter, dtype);
          }
          for (const auto& buffer : model->named_buffers())
            hashes[buffer.key()] = hash_of(*buffer, truth["buffer." + buffer.key()]["dtype"]);
          if (rank != 0) return;
          found = hashes;
          scale = engine.loss_scale();
        });
        CHECK(found == expected);
        CHECK(scale == (source.facts.precision == "fp16" ? 131072 : 1));
      }
    }
  }
}

TEST_CASE("The loss scale continues as in DeepSpeed after its save") {
  for (const std::string name : {"frozen_fp16_s2_w2", "frozen_fp16_s3_w2"}) {
    INFO(name);
    const DeepSpeedCheckpoint source = source_of(name);
    const auto& numbers = source.facts.numbers;
    CHECK(std::get<int64_t>(numbers.at("steps.global")) == 5);
    CHECK(std::get<int64_t>(numbers.at("steps.skipped")) == 3);
    CHECK(std::get<int64_t>(numbers.at("steps.optimizer")) == 2);
    CHECK(source.facts.generation == 2);
    const json facts = facts_of(name);
    LossScaler scaler({.window = facts["ds_config"]["fp16"]["loss_scale_window"],
                       .hysteresis = facts["ds_config"]["fp16"]["hysteresis"]});
    scaler.set_state({.scale = std::get<double>(numbers.at("loss_scaler.scale")),
                      .updates = std::get<int64_t>(numbers.at("loss_scaler.updates")),
                      .last_overflow = std::get<int64_t>(numbers.at("loss_scaler.last_overflow")),
                      .hysteresis = std::get<int64_t>(numbers.at("loss_scaler.hysteresis"))});
    std::vector<double> scales;
    for (const int overflow : facts["overflows_after"]) {
      CHECK(scaler.update(overflow != 0));
      scales.push_back(scaler.scale());
    }
    CHECK(json(scales) == facts["scales_after"]);
  }
}

}  // namespace zerorun::testing
