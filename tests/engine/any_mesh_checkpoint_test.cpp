// Tests that a checkpoint of any mesh, ZeRO stage, precision and home of states is read into any other: all
// states are equal to the bit, and training goes on alike.
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

enum class Home { memory, optimizer_in_files, all_in_files };  // all: the values too

struct Side {
  MeshSizes mesh;
  int stage = 0;
  bool narrow = false;  // bf16
  Home home = Home::memory;

  bool trains_like(const Side& other) const {
    return mesh == other.mesh && stage == other.stage && narrow == other.narrow;
  }
  std::string config(const fs::path& folder) const {
    const std::string files = R"({"device": "nvme", "nvme_path": ")" + folder.string() + "\"";
    std::string zero = home == Home::memory ? "" : R"(, "offload_optimizer": )" + files + "}";
    if (home == Home::all_in_files) zero += R"(, "offload_param": )" + files + R"(, "max_in_cpu": 0})";
    return decoder_config(stage, kAdam, 2, narrow ? R"(, "bf16": {"enabled": true})" : "", zero);
  }
};

std::string describe(const Side& side) {
  const char* const homes[] = {"", ", states in files", ", all in files"};
  return zerorun::describe(side.mesh) + ", stage " + std::to_string(side.stage) +
         (side.narrow ? ", bf16" : "") + homes[static_cast<int>(side.home)];
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
  run_ranks(ranks_of(side.mesh), [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    Decoder model(options);
    const Pipeline pipeline = pipeline_of(model);
    Engine engine = divided_engine(model, side.config(homes), side.mesh, std::move(communicator), pipeline);
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

// The values that no training rounds: master weights, or the values of fp32 training; and the moments.
std::map<std::string, at::Tensor> exact(const Seen& seen) {
  std::map<std::string, at::Tensor> states = seen.states;
  for (const auto& [name, values] : seen.states) {
    if (const auto master = states.extract(name + " master")) states[name] = master.mapped();
  }
  return states;
}

Side any_side(std::mt19937_64& random) {
  const auto choose = [&](size_t count) { return static_cast<size_t>(random() % count); };
  Side side{.mesh = kMeshes[choose(kMeshes.size())], .stage = static_cast<int>(choose(4))};
  side.narrow = choose(3) == 0;
  const size_t home = choose(4);
  if (side.stage > 0 && home > 1) side.home = Home::optimizer_in_files;
  if (side.stage == 3 && home > 2) side.home = Home::all_in_files;
  return side;
}

void check_pair(const Side& writer, const Side& reader, const DecoderOptions& options) {
  const TemporaryFolder folder;
  Seen saved, loaded;
  REQUIRE_NOTHROW(saved = run(writer, options, folder / "checkpoints", true, folder / "writer"));
  REQUIRE_NOTHROW(loaded = run(reader, options, folder / "checkpoints", false, folder / "reader"));
  const bool same_precision = writer.narrow == reader.narrow;
  const auto expected = same_precision ? saved.states : exact(saved);
  const auto found = same_precision ? loaded.states : exact(loaded);
  CHECK(found.size() == expected.size());
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    // Frozen parameters have no master weights.
    const bool rounds = values.scalar_type() != found.at(name).scalar_type();
    CHECK(at::equal(found.at(name).to(rounds ? at::kBFloat16 : values.scalar_type()),
                    rounds ? values.to(at::kBFloat16) : values));
  }
  for (int step = 0; step < 2; ++step) {
    if (writer.trains_like(reader)) {
      CHECK(loaded.losses[step] == saved.losses[2 + step]);
    } else if (!writer.narrow && !reader.narrow) {
      CHECK(loaded.losses[step] == Approx(saved.losses[2 + step]).epsilon(1e-6));
    }
  }
}

}  // namespace

TEST_CASE("A checkpoint of any mesh, stage, precision and home is read into any other") {
  std::mt19937_64 random(20261127);
  const int pairs = tries_all() ? 60 : 12;
  int same = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    const DecoderOptions& options = kModels[random() % kModels.size()];
    const Side writer = any_side(random);
    Side reader = any_side(random);
    if (pair % 6 == 0) {  // training goes on with the same bits
      reader.mesh = writer.mesh;
      reader.stage = writer.stage;
      reader.narrow = writer.narrow;
      reader.home = Home::memory;
    }
    same += writer.trains_like(reader);
    CAPTURE(pair, describe(writer), describe(reader), options.fused, options.gated, options.lora);
    check_pair(writer, reader, options);
  }
  std::printf("%d pairs of meshes, %d of them alike\n", pairs, same);
}

}  // namespace zerorun::testing
