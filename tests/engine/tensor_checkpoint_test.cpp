// Tests checkpoints and models of meshes whose tensor ranks have divided the parameters. A training goes on
// from a checkpoint on the same mesh with the same bits (any_mesh_checkpoint_test.cpp has other meshes). The
// command `zerorun checkpoint` reads such a checkpoint.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/publication.h"
#include "checkpoint/safetensors_reader.h"
#include "engine/parameter_states.h"
#include "tests/engine/mesh_support.h"
#include "tests/engine/tensor_support.h"
#include "tests/launcher/command_folder.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr int kAccumulation = 2;
constexpr const char* kAdam = R"({"type": "AdamW", "params": {"lr": 0.003}})";
constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";

const DecoderOptions kGpt2 = {.fused = true, .tied = true};
// Parameters of norms of heads are whole on each tensor rank, which has a gradient of its own.
const DecoderOptions kQwen3 = {.gated = true, .head_norms = true, .heads = 16, .key_heads = 8};
const DecoderOptions kLora = {.lora = true};  // with frozen parameters

// What a training computes: losses and norms of micro-steps, and at the end all parameters and states.
struct Seen {
  std::vector<double> numbers;
  std::map<std::string, at::Tensor> states;
};

// Micro-steps `begin` to `end` - 1.
void train(Engine& engine, Decoder& model, int begin, int end, Seen& seen) {
  for (int number = begin; number < end; ++number) {
    const at::Tensor loss = model->loss(tokens_of(model->options, number / kAccumulation,
                                                  number % kAccumulation, engine.mesh().coordinates().data));
    engine.backward(loss);
    engine.step();
    seen.numbers.push_back(loss.item<double>());
    if (number % kAccumulation == kAccumulation - 1) seen.numbers.push_back(engine.get_global_grad_norm());
  }
}

void add_states(Engine& engine, Decoder& model, Seen& seen) {
  seen.states = whole_parameters(engine, model);
  ParameterStates states(engine);
  for (const auto& parameter : model->named_parameters()) {
    for (const std::string& name : states.names(*parameter))
      seen.states[parameter.key() + " " + name] = states.read(*parameter, name);
  }
}

void expect_same(const Seen& found, const Seen& expected) {
  expect(found.numbers == expected.numbers, "the same losses and norms");
  expect(found.states.size() == expected.states.size(), "the same states");
  for (const auto& [name, values] : expected.states)
    testing::expect_same(found.states.at(name), values, name);
}

struct Way {
  DecoderOptions options = kGpt2;
  MeshSizes mesh = {2, 2, 1};
  std::string config;
  int saved = 3 * kAccumulation;  // micro-steps before the save
  CheckpointOptions saving = {};
  int also_saved = 0;  // micro-steps before an earlier save; 0: none
};

// Trains, saves and trains on; then continues from the checkpoint with a new model and engine.
void check_continues(const Way& way, const fs::path& folder) {
  const int end = way.saved + 3 * kAccumulation;
  CHECK_NOTHROW(run_ranks(ranks_of(way.mesh), [&](std::shared_ptr<Communicator> communicator) {
    Seen expected, found;
    {
      Decoder model(way.options);
      Engine engine = decoder_engine(*model, way.config, way.mesh, communicator, plan_of(way.options));
      Seen before;
      train(engine, model, 0, way.also_saved, before);
      if (way.also_saved > 0) engine.save_checkpoint(folder, "", way.saving);
      train(engine, model, way.also_saved, way.saved, before);
      engine.save_checkpoint(folder, "", way.saving);
      train(engine, model, way.saved, end, expected);
      add_states(engine, model, expected);
      engine.wait_for_checkpoint();
    }
    Decoder model(way.options);
    Engine engine = decoder_engine(*model, way.config, way.mesh, communicator, plan_of(way.options));
    engine.load_checkpoint(folder);
    train(engine, model, way.saved, end, found);
    add_states(engine, model, found);
    expect_same(found, expected);
  }));
}

// Saves after the micro-steps that `way` says. Returns the whole parameters.
std::map<std::string, at::Tensor> save(const Way& way, const fs::path& folder) {
  std::map<std::string, at::Tensor> parameters;
  REQUIRE_NOTHROW(run_ranks(ranks_of(way.mesh), [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    Decoder model(way.options);
    Engine engine =
        decoder_engine(*model, way.config, way.mesh, std::move(communicator), plan_of(way.options));
    Seen seen;
    train(engine, model, 0, way.saved, seen);
    engine.save_checkpoint(folder, "", way.saving);
    const auto values = whole_parameters(engine, model);
    if (is_first) parameters = values;
    engine.wait_for_checkpoint();
  }));
  return parameters;
}

// Expects `error` on each rank of a job that loads the checkpoint, and the same parameters and states as
// before.
void check_refused(const Way& way, const TensorPlan& plan, const fs::path& folder, const std::string& error) {
  CAPTURE(describe(way.mesh), error);
  CHECK_NOTHROW(run_ranks(ranks_of(way.mesh), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(way.options);
    Engine engine = decoder_engine(*model, way.config, way.mesh, std::move(communicator), plan);
    Seen before, after;
    add_states(engine, model, before);
    expect_throws([&] { engine.load_checkpoint(folder); }, error, "refused on each rank");
    add_states(engine, model, after);
    expect_same(after, before);
  }));
}

}  // namespace

TEST_CASE("A training whose parameters are split continues from its checkpoint with the same bits") {
  const std::vector<DecoderOptions> models = {kGpt2, kQwen3, kLora};
  const std::vector<MeshSizes> meshes = {{2, 2, 1}, {1, 2, 1}};
  for (const auto [which, shape, stage, narrow, in_window] :
       settings(static_cast<int>(models.size()), static_cast<int>(meshes.size()), 4, 2, 2)) {
    CAPTURE(which, describe(meshes[shape]), stage, narrow, in_window);
    const TemporaryFolder folder;
    check_continues({.options = models[which],
                     .mesh = meshes[shape],
                     .config = decoder_config(stage, kAdam, kAccumulation, narrow == 1 ? kBf16 : ""),
                     .saved = 3 * kAccumulation + in_window},
                    folder / "");
  }
}

TEST_CASE("Checkpoints of split parameters that are kept in files, and without frozen parameters") {
  const TemporaryFolder folder;
  const std::string files = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + "\"";
  const std::string optimizer = R"(, "offload_optimizer": )" + files + "}";
  const std::string values = R"(, "offload_param": )" + files + R"(, "max_in_cpu": 0})";
  check_continues({.options = kQwen3,
                   .config = decoder_config(2, kAdam, kAccumulation, kBf16, optimizer),
                   .saving = {.keep_last = 1},
                   .also_saved = 2 * kAccumulation},
                  folder / "stage2");
  CHECK(published_tags(checkpoint::local_file_system(), folder / "stage2") ==
        std::vector<std::string>{"global_step3"});
  // The second checkpoint links files of frozen parameters of the first.
  check_continues({.options = kLora,
                   .config = decoder_config(3, kAdam, kAccumulation, "", optimizer + values),
                   .saved = 3 * kAccumulation + 1,
                   .also_saved = kAccumulation},
                  folder / "stage3");
  check_continues({.options = kLora,
                   .config = decoder_config(1, kAdam, kAccumulation),
                   .saving = {.exclude_frozen = true}},
                  folder / "stage1");
}

TEST_CASE("A checkpoint from within a window is refused on another mesh, and changes nothing") {
  const TemporaryFolder folder;
  const std::string config = decoder_config(1, kAdam, kAccumulation);
  save({.mesh = {2, 2, 1}, .config = config, .saved = 2 * kAccumulation + 1}, folder / "");
  check_refused({.mesh = {1, 4, 1}, .config = config}, plan_of(kGpt2), folder / "", "is split");
  check_refused({.mesh = {4, 1, 1}, .config = config}, plan_of(kGpt2), folder / "", "is split");
}

TEST_CASE("A checkpoint of a mesh is refused if the tensor plan is another one") {
  const TemporaryFolder folder;
  const Way way = {
      .options = kQwen3, .config = decoder_config(2, kAdam, kAccumulation), .saved = 2 * kAccumulation + 1};
  save(way, folder / "");
  auto plan_without = [](const std::string& pattern) {
    TensorPlan plan = plan_of(kQwen3);
    std::erase_if(plan, [&](const TensorPlanEntry& entry) { return entry.pattern == pattern; });
    return plan;
  };
  check_refused(way, plan_without("embedding"), folder / "",
                "embedding.weight is split not here, and split along dimension 0 among 2 tensor ranks: "
                "[0, 22) | [22, 44) in the checkpoint");
  check_refused(way, plan_without("layers.*.q_norm"), folder / "",
                "gradients of layers.0.q_norm.weight: of each tensor rank there, of all here");
}

TEST_CASE("The command verifies, shows, compares and exports a checkpoint of a mesh") {
  const CommandFolder folder;
  const Way way = {.options = kQwen3, .config = decoder_config(3, kAdam, kAccumulation)};
  const auto parameters = save(way, folder / "out");
  save(way, folder / "again");
  const Outcome verified = folder.run("checkpoint verify out");
  CHECK_THAT(verified.out, Contains("whole: "));
  CHECK(verified.exit_code == 0);
  const Outcome shown = folder.run("checkpoint inspect out --parameter '*.0.q.weight'");
  CHECK_THAT(shown.out, Contains("4 ranks (data 2 x tensor 2 x pipeline 1)") &&
                            Contains("split along dimension 0 among 2 tensor ranks: [0, 32) | [32, 64)"));
  CHECK_THAT(folder.run("checkpoint inspect out --json").out, Contains("\"split\""));
  CHECK(folder.run("checkpoint diff out again").exit_code == 0);
  REQUIRE(folder.run("checkpoint export out model --dtype fp32").exit_code == 0);
  const SafetensorsReader exported(folder / "model");
  CHECK(exported.tensors().size() == parameters.size());
  for (const auto& [name, values] : parameters) {
    CAPTURE(name);
    REQUIRE(exported.tensors().contains(name));
    CHECK(exported.tensors().at(name).shape == values.sizes().vec());
    const auto bytes = exported.read(name);
    CHECK(std::memcmp(bytes.data(), values.const_data_ptr(), values.nbytes()) == 0);
  }

  // A file of each tensor rank is needed, and each element once.
  const std::string file = "bucket-00000-rank-00001.safetensors";
  const fs::path damaged = folder / "out" / "global_step3" / file;
  fs::resize_file(damaged, fs::file_size(damaged) - 4096);
  const Outcome found = folder.run("checkpoint verify out");
  CHECK(found.exit_code == 1);
  CHECK_THAT(found.out, Contains(file));
}

TEST_CASE("A model of a mesh is saved whole, with the values of a plain process") {
  for (const auto& [which, stage] : std::vector<std::pair<int, int>>{{0, 0}, {1, 1}, {2, 2}, {1, 3}}) {
    const DecoderOptions options = std::vector{kGpt2, kQwen3, kLora}[static_cast<size_t>(which)];
    CAPTURE(which, stage);
    const TemporaryFolder folder;
    const TrainedDecoder expected = train_plain(options, kSgd, 2, 1, 4);
    REQUIRE_NOTHROW(run_ranks(4, [&, stage = stage](std::shared_ptr<Communicator> communicator) {
      Decoder model(options);
      Engine engine = decoder_engine(*model, decoder_config(stage, kSgd, 1), {2, 2, 1},
                                     std::move(communicator), plan_of(options));
      train_decoder(engine, model, 4);
      engine.save_16bit_model(folder / "");
    }));
    const SafetensorsReader saved(folder / "model.safetensors");
    CHECK(saved.tensors().size() == expected.parameters.size());
    for (const auto& [name, values] : expected.parameters) {
      CAPTURE(name);
      REQUIRE(saved.tensors().contains(name));
      CHECK(saved.tensors().at(name).shape == values.sizes().vec());
      auto bytes = saved.read(name);
      const at::Tensor found = at::from_blob(bytes.data(), values.sizes(), at::kFloat);
      CHECK((found - values).abs().max().item<double>() < 2e-6);
    }
  }
}

TEST_CASE("A save finds tensor ranks whose whole parameters have drifted apart") {
  const TemporaryFolder folder;
  const DecoderOptions options;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    Engine engine =
        decoder_engine(*model, decoder_config(1, kSgd), kTwoByTwo, std::move(communicator), plan_of(options));
    {
      at::NoGradGuard no_grad;  // as if the second tensor rank had got another gradient
      if (engine.mesh().coordinates().tensor == 1) model->named_parameters()["last_norm.weight"].add_(1);
    }
    engine.backward(model->loss(tokens_of(options, 0, 0, engine.mesh().coordinates().data)) * 0);
    engine.step();
    expect_throws([&] { engine.save_checkpoint(folder / "checkpoints"); }, "parameter last_norm.weight",
                  "the save");
  }));
}

}  // namespace zerorun::testing
