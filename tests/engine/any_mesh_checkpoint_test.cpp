// Tests that a checkpoint of any mesh, ZeRO stage and home of states is read into any other: all states are
// equal to the bit, and training goes on alike.
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/parameter_states.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

// The shapes of 1 to 8 ranks in which the models below can be divided.
const std::vector<MeshSizes> kMeshes = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                        {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {1, 4, 1}, {1, 1, 4},
                                        {2, 2, 2}, {1, 3, 1}, {4, 1, 2}, {1, 3, 2}};
const std::vector<DecoderOptions> kModels = {
    {.fused = true, .tied = true, .layers = 3},
    {.gated = true, .head_norms = true, .heads = 16, .key_heads = 8, .layers = 3},
    {.lora = true, .layers = 3}};

struct Side {
  MeshSizes mesh;
  int stage;
  bool in_files;
};

std::string describe(const Side& side) {
  return zerorun::describe(side.mesh) + ", stage " + std::to_string(side.stage) +
         (side.in_files ? ", states in files" : "");
}

// What ranks have of a training: parameters and their states, whole, of all pipeline stages.
struct Seen {
  std::map<std::string, at::Tensor> states;
  std::vector<double> losses;
};

void add_states(Engine& engine, Decoder& model, const Pipeline& pipeline, std::mutex& mutex, Seen& seen) {
  std::map<std::string, at::Tensor> own = parameters_of_stage(engine, model);
  ParameterStates states(engine);
  for (const auto& parameter : model->named_parameters()) {
    if (!is_of_stage(parameter.value(), pipeline, engine.mesh())) continue;
    for (const std::string& name : states.names(*parameter))
      own[parameter.key() + " " + name] = states.read(*parameter, name);
  }
  const std::lock_guard lock(mutex);
  seen.states.insert(own.begin(), own.end());
}

// Trains two windows and saves, or loads and trains two windows more. The samples of a window are those of
// one data rank, so that all meshes train alike.
Seen run(const Side& side, const DecoderOptions& options, const fs::path& folder, bool saves,
         const fs::path& homes) {
  Seen seen;
  std::mutex mutex;
  const std::string zero =
      side.in_files ? R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" + homes.string() + R"("})"
                    : "";
  run_ranks(ranks_of(side.mesh), [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    Decoder model(options);
    const Pipeline pipeline = pipeline_of(model);
    Engine engine = divided_engine(model, decoder_config(side.stage, kAdam, 2, "", zero), side.mesh,
                                   std::move(communicator), pipeline);
    if (!saves) {
      engine.load_checkpoint(folder);
      add_states(engine, model, pipeline, mutex, seen);
    }
    for (int step = 0; step < 2; ++step) {
      const at::Tensor loss = engine.train_batch(window_of(options, saves ? step : 2 + step, 2, 0));
      if (is_first) seen.losses.push_back(loss.item<double>());
    }
    if (!saves) return;
    engine.save_checkpoint(folder);
    add_states(engine, model, pipeline, mutex, seen);
    for (int step = 2; step < 4; ++step) {
      const at::Tensor loss = engine.train_batch(window_of(options, step, 2, 0));
      if (is_first) seen.losses.push_back(loss.item<double>());
    }
    engine.wait_for_checkpoint();
  });
  return seen;
}

}  // namespace

TEST_CASE("A checkpoint of any mesh, stage and home is read into any other") {
  std::mt19937_64 random(20261127);
  const auto choose = [&](size_t count) { return static_cast<size_t>(random() % count); };
  const auto side = [&] {
    const MeshSizes mesh = kMeshes[choose(kMeshes.size())];
    const int stage = static_cast<int>(choose(4));
    return Side{.mesh = mesh, .stage = stage, .in_files = stage > 0 && choose(3) == 0};
  };
  const int pairs = tries_all() ? 60 : 10;
  for (int pair = 0; pair < pairs; ++pair) {
    const DecoderOptions& options = kModels[choose(kModels.size())];
    const Side writer = side(), reader = side();
    CAPTURE(pair, describe(writer), describe(reader), options.fused, options.gated, options.lora);
    const TemporaryFolder folder;
    Seen saved, loaded;
    REQUIRE_NOTHROW(saved = run(writer, options, folder / "checkpoints", true, folder / "writer"));
    REQUIRE_NOTHROW(loaded = run(reader, options, folder / "checkpoints", false, folder / "reader"));
    CHECK(saved.states.size() == loaded.states.size());
    for (const auto& [name, values] : saved.states) {
      CAPTURE(name);
      REQUIRE(loaded.states.contains(name));
      CHECK(at::equal(loaded.states.at(name), values));
    }
    for (int step = 0; step < 2; ++step)
      CHECK(loaded.losses[step] == Approx(saved.losses[2 + step]).epsilon(1e-6));
  }
}

}  // namespace zerorun::testing
