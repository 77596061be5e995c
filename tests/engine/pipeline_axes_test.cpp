// Tests that what a divided model computes has the same bits on every axis that may not change them: the
// number of pipeline stages, ZeRO stages, precisions, homes of states, and deferred construction.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/gathered_parameters.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

const std::string kPrecisionKeys[] = {
    "", R"(, "bf16": {"enabled": true})",
    R"(, "fp16": {"enabled": true, "initial_scale_power": 8, "hysteresis": 1})",
    R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},
       "zerorun": {"stochastic_rounding": true})"};
const DecoderOptions kPlainHead = {.gated = true, .layers = 4};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;  // of all stages
};

std::string unclipped(std::string config) {
  const std::string clip = R"("gradient_clipping": 0.5)";
  return config.replace(config.find(clip), clip.size(), R"("gradient_clipping": 0)");
}

// What a training begins and ends with.
struct Ends {
  int first = 0, steps = 3;
  std::filesystem::path from = {}, to = {};  // checkpoints; empty: none
};

// Trains on `mesh`. `deferred`: the model is built without memory.
Trained train_on(const MeshSizes& mesh, const DecoderOptions& options, const std::string& config,
                 bool deferred = false, const Ends& ends = {}) {
  Trained all;
  std::mutex mutex;
  run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    auto scope = deferred ? std::make_unique<DeferredInit>() : nullptr;
    Decoder model(options);
    scope.reset();
    Engine engine = divided_engine(model, config, mesh, std::move(communicator));
    if (!ends.from.empty()) engine.load_checkpoint(ends.from);
    const TrainedDecoder own = train_divided(engine, model, ends.steps, ends.first);
    if (!ends.to.empty()) engine.save_checkpoint(ends.to);
    std::lock_guard lock(mutex);
    all.losses = own.losses;
    for (const auto& [name, values] : own.parameters) {
      const auto [found, is_new] = all.parameters.emplace(name, values);
      if (!is_new) testing::expect_same(values, found->second, name + " on another rank");
    }
  });
  return all;
}

void expect_same(const Trained& found, const Trained& expected) {
  expect(found.losses == expected.losses, "the same losses");
  expect(found.parameters.size() == expected.parameters.size(), "the same parameters");
  for (const auto& [name, values] : expected.parameters)
    testing::expect_same(found.parameters.at(name), values, name);
}

// The same training without a pipeline, by backward() and step().
Trained train_whole(const DecoderOptions& options, const std::string& config, int data) {
  Trained all;
  std::mutex mutex;
  run_ranks(data, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    Engine engine = decoder_engine(*model, config, {.data = data}, std::move(communicator), {});
    const TrainedDecoder own = train_decoder(engine, model, 3);
    std::lock_guard lock(mutex);
    all.parameters = own.parameters;
  });
  return all;
}

}  // namespace

TEST_CASE("Parameters have the bits of a training without a pipeline") {
  for (const auto [stages, stage, precision, data, accumulates] : settings(3, 4, 4, 2, 2)) {
    const MeshSizes mesh{.data = 1 + data, .tensor = 1, .pipeline = 1 << stages};
    CAPTURE(describe(mesh), stage, precision, accumulates);
    const std::string config =
        unclipped(decoder_config(stage, kAdam, accumulates ? 5 : 1, kPrecisionKeys[precision]));
    const Trained expected = train_whole(kPlainHead, config, mesh.data);
    Trained found;
    CHECK_NOTHROW(found = train_on(mesh, kPlainHead, config));
    CHECK(found.parameters.size() == expected.parameters.size());
    for (const auto& [name, values] : expected.parameters)
      CHECK_NOTHROW(testing::expect_same(found.parameters[name], values, name));
  }
}

TEST_CASE("Tied layers, norms and clipping have the same bits at every ZeRO stage and precision") {
  const DecoderOptions options = {.tied = true, .layers = 2};
  const MeshSizes meshes[] = {{2, 1, 2}, {1, 2, 2}};
  for (const auto [shape, precision] : settings(2, 4)) {
    CAPTURE(describe(meshes[shape]), precision);
    const Trained expected =
        train_on(meshes[shape], options, decoder_config(1, kAdam, 3, kPrecisionKeys[precision]));
    for (const int stage : {0, 2, 3}) {
      CAPTURE(stage);
      // With several micro-batches stages 2 and 3 sum over ranks first, which rounds otherwise.
      const std::string window = stage >= 2 ? R"(, "pipeline": {"reduce": "window"})" : std::string();
      CHECK_NOTHROW(expect_same(train_on(meshes[shape], options,
                                         decoder_config(stage, kAdam, 3, kPrecisionKeys[precision] + window)),
                                expected));
    }
  }
}

TEST_CASE("On all axes of the mesh at once recomputed layers have the same bits, also saved and loaded") {
  struct Precision {
    const char *keys, *own_keys;
  };
  const Precision precisions[] = {
      {"", R"("stochastic_rounding": false)"},
      {R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})",
       R"("stochastic_rounding": true)"},
      {R"(, "torch_autocast": {"enabled": true, "dtype": "bfloat16"})", R"("stochastic_rounding": false)"},
      {"", R"("optimizer_states_in_8_bits": true)"}};
  const MeshSizes mesh{2, 2, 2};
  const DecoderOptions options = {.tied = true, .layers = 4};
  for (const auto [stage, type] : settings(4, 4)) {
    CAPTURE(stage, type);
    const TemporaryFolder folder;
    const auto config = [&, &stage = stage, &type = type](const std::string& recompute) {
      const auto& [keys, own_keys] = precisions[type];
      return decoder_config(stage, kAdam, 2,
                            std::string(keys) + R"(, "zerorun": {)" + own_keys + recompute + "}");
    };
    const std::string recomputes = config(R"(, "recompute": {"every": 1})");
    const Trained whole = train_on(mesh, options, config(""), false, {.steps = 4});
    Trained expected = whole;
    expected.losses = {whole.losses.begin() + 2, whole.losses.end()};
    CHECK_NOTHROW(train_on(mesh, options, recomputes, false, {.steps = 2, .to = folder / "saved"}));
    Trained found;
    CHECK_NOTHROW(found = train_on(mesh, options, recomputes, false,
                                   {.first = 2, .steps = 2, .from = folder / "saved"}));
    CHECK_NOTHROW(expect_same(found, expected));
  }
}

TEST_CASE("Initial values of a model that is built without memory do not depend on the mesh") {
  const DecoderOptions options = {.tied = true, .layers = 4};
  const std::string config = decoder_config(3, kSgd, 2);
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 4}, MeshSizes{2, 1, 2}, MeshSizes{1, 2, 2}}) {
    CAPTURE(describe(mesh));
    CHECK_NOTHROW(
        expect_same(train_on(mesh, options, config, /*deferred=*/true), train_on(mesh, options, config)));
  }
}

TEST_CASE("States of a stage may be in files") {
  const DecoderOptions options = {.tied = true, .layers = 2};
  const MeshSizes mesh{2, 1, 2};
  const Trained expected = train_on(mesh, options, decoder_config(3, kAdam, 2));
  const TemporaryFolder folder;
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + R"("})";
  CHECK_NOTHROW(expect_same(
      train_on(mesh, options,
               decoder_config(3, kAdam, 2, "",
                              R"(, "offload_optimizer": )" + nvme + R"(, "offload_param": )" + nvme)),
      expected));
}

TEST_CASE("Ranks that draw other initial values train those of the first data rank of each stage") {
  const DecoderOptions options = {.tied = true, .layers = 2};
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(options);
    model->register_buffer("scale", at::full({3}, 0.5));
    const at::Tensor frozen = model->named_parameters()["last_norm.bias"].requires_grad_(false);
    const at::Tensor of_first_frozen = frozen.detach().clone();
    Pipeline pipeline = pipeline_of(model);
    pipeline.layers[0].tensors.push_back(frozen);
    for (const int layer : {0, 3}) pipeline.layers[layer].tensors.push_back(model->named_buffers()["scale"]);
    const at::Tensor embedding = model->named_parameters()["embedding.weight"];
    const at::Tensor of_first = embedding.detach().clone();
    {
      torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) parameter.add_(rank);
      model->named_buffers()["scale"].add_(rank);
    }
    Engine engine =
        divided_engine(model, decoder_config(1, kSgd, 1), {2, 1, 2}, std::move(communicator), pipeline);
    const GatheredParameters whole(engine, {embedding});
    testing::expect_same(embedding.detach().clone(), of_first, "the tied parameter is the first stage's");
    testing::expect_same(frozen.detach().clone(), of_first_frozen, "and so is a frozen one");
    testing::expect_same(model->named_buffers()["scale"], at::full({3}, 0.5), "and a buffer");
  }));
}

}  // namespace zerorun::testing
