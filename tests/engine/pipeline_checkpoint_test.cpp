// Tests checkpoints and models of meshes with pipeline stages: training goes on with the same bits on the
// same mesh, on another number of stages and without a pipeline, and files have the names of the whole model.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/publication.h"
#include "checkpoint/safetensors_reader.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/pipeline_support.h"
#include "tests/launcher/command_folder.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const DecoderOptions kTied = {.tied = true, .layers = 4};

using Values = std::map<std::string, at::Tensor>;

// The decoder with a buffer that two layers use and one that one layer uses, and frozen parameters.
struct Model {
  explicit Model(const DecoderOptions& options) : decoder(options) {
    decoder->register_buffer("scale", at::ones({3}) * 0.5);
    decoder->register_buffer("shift", at::arange(4));
    for (const auto& parameter : decoder->named_parameters()) {
      if (parameter.key().ends_with("mlp_norm.bias") || parameter.key() == "layers.2.up.weight")
        parameter.value().requires_grad_(false);
    }
    pipeline = pipeline_of(decoder);
    const auto buffers = decoder->named_buffers();
    pipeline.layers[1].tensors.push_back(buffers["scale"]);
    pipeline.layers[4].tensors.push_back(buffers["scale"]);
    pipeline.layers[5].tensors.push_back(buffers["shift"]);
  }
  Decoder decoder;
  Pipeline pipeline;
};

std::string config_of(int stage, const std::string& precision, const std::string& zero = "",
                      const std::string& optimizer = kAdam) {
  return decoder_config(stage, optimizer, 2, precision, zero);
}

// Trains `steps` windows from step `first` on, and returns the values of all stages. Before, loads from
// `from` if it is not empty; afterwards saves to `to`.
struct Run {
  MeshSizes mesh;
  std::string config;
  int first = 0;
  int steps = 2;
  fs::path from = {};
  fs::path to = {};
  fs::path model_to = {};
};

Values train(const Run& run) {
  Values all;
  std::mutex mutex;
  run_ranks(ranks_of(run.mesh), [&](std::shared_ptr<Communicator> communicator) {
    Model model(kTied);
    Engine engine =
        divided_engine(model.decoder, run.config, run.mesh, std::move(communicator), model.pipeline);
    if (!run.from.empty()) engine.load_checkpoint(run.from);
    const TrainedDecoder own = train_divided(engine, model.decoder, run.steps, run.first);
    if (!run.to.empty()) engine.save_checkpoint(run.to);
    if (!run.model_to.empty()) engine.save_16bit_model(run.model_to);
    engine.wait_for_checkpoint();
    std::lock_guard lock(mutex);
    for (const auto& [name, values] : own.parameters) all.emplace(name, values);
    for (const auto& buffer : model.decoder->named_buffers()) {
      if (is_of_stage(buffer.value(), model.pipeline, engine.mesh()))
        all.emplace(buffer.key(), buffer.value());
    }
  });
  return all;
}

void expect_same(const Values& found, const Values& expected) {
  expect(found.size() == expected.size(), "the same tensors");
  for (const auto& [name, values] : expected) testing::expect_same(found.at(name), values, name);
}

}  // namespace

TEST_CASE("Training goes on from a checkpoint on the same mesh with the same bits") {
  const MeshSizes meshes[] = {{1, 1, 4}, {2, 1, 2}, {1, 2, 2}};
  const std::string precisions[] = {"", R"(, "bf16": {"enabled": true})"};
  for (const auto [shape, stage, precision] : settings(3, 4, 2)) {
    CAPTURE(describe(meshes[shape]), stage, precision);
    const TemporaryFolder folder;
    const std::string config = config_of(stage, precisions[precision]);
    Values expected, found;
    REQUIRE_NOTHROW(expected = train({.mesh = meshes[shape], .config = config, .steps = 4}));
    CHECK_NOTHROW(train({.mesh = meshes[shape], .config = config, .to = folder / ""}));
    CHECK_NOTHROW(found = train({.mesh = meshes[shape], .config = config, .first = 2, .from = folder / ""}));
    CHECK_NOTHROW(expect_same(found, expected));
  }
}

TEST_CASE("A checkpoint of one number of stages is loaded with any other, and without a pipeline") {
  const TemporaryFolder folder;
  // Adam would make what rounding leaves of a gradient that is zero as large as any other.
  const std::string config = config_of(3, "", "", kSgd);
  CHECK_NOTHROW(train({.mesh = {1, 1, 2}, .config = config, .to = folder / ""}));
  // The sum of the norm over stages differs by rounding, and so does clipping.
  Values expected;
  REQUIRE_NOTHROW(expected = train({.mesh = {1, 1, 2}, .config = config, .first = 2, .from = folder / ""}));
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 4}, MeshSizes{1, 1, 1}, MeshSizes{1, 1, 3}}) {
    CAPTURE(describe(mesh));
    Values found;
    CHECK_NOTHROW(found = train({.mesh = mesh, .config = config, .first = 2, .from = folder / ""}));
    for (const auto& [name, values] : expected) {
      CAPTURE(name);
      CHECK(at::allclose(found.at(name).to(at::kFloat), values.to(at::kFloat), 1e-6, 1e-7));
    }
  }
}

TEST_CASE("A checkpoint from within a window is refused on another mesh of as many ranks") {
  const TemporaryFolder folder;
  const std::string config = config_of(1, "");
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Model model(kTied);
    Engine engine = decoder_engine(*model.decoder, config, {4, 1, 1}, communicator, {});
    engine.backward(model.decoder->loss(tokens_of(kTied, 0, 0, communicator->rank())));
    engine.step();
    engine.save_checkpoint(folder / "");
    engine.wait_for_checkpoint();
  }));
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Model model(kTied);
    Engine engine = divided_engine(model.decoder, config, {2, 1, 2}, std::move(communicator), model.pipeline);
    expect_throws([&] { engine.load_checkpoint(folder / ""); },
                  "mesh: data 4 x tensor 1 x pipeline 1 there, data 2 x tensor 1 x pipeline 2 here",
                  "gradients of other ranks");
  }));
}

TEST_CASE("A checkpoint of stages without frozen parameters, and states in files") {
  const MeshSizes mesh{2, 1, 2};
  const TemporaryFolder folder, states;
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + (states / "").string() + R"("})";
  const std::string config = config_of(3, "", R"(, "offload_optimizer": )" + nvme);
  Values expected, found;
  REQUIRE_NOTHROW(expected = train({.mesh = mesh, .config = config, .steps = 4}));
  CHECK_NOTHROW(train({.mesh = mesh, .config = config, .to = folder / ""}));
  CHECK_NOTHROW(found = train({.mesh = mesh, .config = config, .first = 2, .from = folder / ""}));
  CHECK_NOTHROW(expect_same(found, expected));
}

TEST_CASE("save_16bit_model() of stages writes the whole model under its names") {
  for (const MeshSizes& mesh : {MeshSizes{2, 1, 2}, MeshSizes{1, 2, 2}}) {
    CAPTURE(describe(mesh));
    const TemporaryFolder folder;
    Values expected;
    REQUIRE_NOTHROW(
        expected = train({.mesh = mesh, .config = config_of(3, ""), .steps = 1, .model_to = folder / ""}));
    const Model whole(kTied);
    const SafetensorsReader reader(folder / "model.safetensors");
    std::vector<std::string> names;
    for (const auto& parameter : whole.decoder->named_parameters()) names.push_back(parameter.key());
    for (const auto& buffer : whole.decoder->named_buffers()) names.push_back(buffer.key());
    CHECK(reader.tensors().size() == names.size());
    for (const std::string& name : names) {
      CAPTURE(name);
      const at::Tensor& values = expected.at(name);
      REQUIRE(reader.tensors().contains(name));
      CHECK(reader.tensors().at(name).shape == values.sizes().vec());
      const auto bytes = reader.read(name);
      CHECK(std::memcmp(bytes.data(), values.const_data_ptr(), values.nbytes()) == 0);
    }
  }
}

TEST_CASE("The command reads the checkpoint of a pipeline") {
  const CommandFolder folder;
  CHECK_NOTHROW(train({.mesh = {1, 1, 2}, .config = config_of(2, ""), .to = folder / "out"}));
  const Outcome verified = folder.run("checkpoint verify out");
  CHECK_THAT(verified.out, Contains("whole: "));
  CHECK(verified.exit_code == 0);
  CHECK_THAT(folder.run("checkpoint inspect out").out, Contains("2 ranks (data 1 x tensor 1 x pipeline 2)"));
  REQUIRE(folder.run("checkpoint export out model --dtype fp32").exit_code == 0);
  CHECK(SafetensorsReader(folder / "model").tensors().contains("layers.3.up.weight"));
}

TEST_CASE(
    "Saves of a mesh in the background keep the last, link frozen parameters, and are pruned and exported") {
  const CommandFolder folder;
  const MeshSizes mesh{1, 2, 2};
  Values expected;
  std::mutex mutex;
  REQUIRE_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    Model model(kTied);
    Engine engine =
        divided_engine(model.decoder, config_of(1, ""), mesh, std::move(communicator), model.pipeline);
    for (int step = 0; step < 4; ++step) {
      train_divided(engine, model.decoder, 1, step);
      engine.save_checkpoint(folder / "out", "", {.keep_last = 3});
    }
    const Values own = parameters_of_stage(engine, model.decoder);
    engine.wait_for_checkpoint();
    const std::lock_guard lock(mutex);
    expected.insert(own.begin(), own.end());
  }));
  const auto tags = [&] { return published_tags(checkpoint::local_file_system(), folder / "out"); };
  CHECK(tags() == std::vector<std::string>{"global_step2", "global_step3", "global_step4"});
  int linked = 0;
  for (const auto& entry : fs::directory_iterator(folder / "out" / "global_step4"))
    linked +=
        entry.path().filename().string().starts_with("frozen") && fs::hard_link_count(entry.path()) == 3;
  CHECK(linked == 2);  // of each stage
  CHECK(folder.run("checkpoint verify out").exit_code == 0);
  CHECK_THAT(folder.run("checkpoint diff out/global_step3 out/global_step4").out, Contains("exp_avg"));
  CHECK_NOTHROW(train({.mesh = {1, 1, 2}, .config = config_of(1, ""), .to = folder / "other"}));
  CHECK_THAT(folder.run("checkpoint diff out/global_step2 other").out, Contains("split along dimension"));

  CHECK(folder.run("checkpoint prune out --keep 1").exit_code == 0);
  CHECK(tags() == std::vector<std::string>{"global_step4"});
  CHECK(folder.run("checkpoint verify out").exit_code == 0);
  REQUIRE(folder.run("checkpoint export out model --dtype fp32").exit_code == 0);
  const SafetensorsReader exported(folder / "model");
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    REQUIRE(exported.tensors().contains(name));
    CHECK(exported.tensors().at(name).shape == values.sizes().vec());
    const auto bytes = exported.read(name);
    CHECK(std::memcmp(bytes.data(), values.const_data_ptr(), values.nbytes()) == 0);
  }
}

}  // namespace zerorun::testing
