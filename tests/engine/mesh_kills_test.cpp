// Tests jobs of tensor ranks and pipeline stages that are killed at random moments, and file systems that
// fail at random calls, as kills_test.cpp does for data ranks: with the same environment variables (defaults
// 10 and 30).
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <mutex>

#include "checkpoint/checksums.h"
#include "checkpoint/publication.h"
#include "engine/engine_state.h"
#include "engine/parameter_states.h"
#include "engine/saving/checkpoints.h"
#include "tests/engine/engine_internals.h"
#include "tests/engine/kills_support.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;

const MeshSizes kMeshes[] = {{1, 2, 1}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2}};
const DecoderOptions kModel = {.fused = true, .tied = true};

struct Way {
  MeshSizes mesh;
  int stage;
  fs::path states = {};  // where optimizer states are in files; empty: in memory

  std::string config() const {
    const std::string files = states.empty() ? ""
                                             : R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" +
                                                   states.string() + R"("})";
    return decoder_config(stage, kAdam, 1, "", files);
  }
};

// The states of all ranks, whole: the digest of a step is that of all of them.
class Collected {
 public:
  // Adds this rank's, and returns the digest. A collective.
  uint64_t digest(Engine& engine, Decoder& model, const Pipeline& pipeline) {
    std::map<std::string, at::Tensor> own = parameters_of_stage(engine, model);
    ParameterStates states(engine);
    for (const auto& parameter : model->named_parameters()) {
      if (!is_of_stage(parameter.value(), pipeline, engine.mesh())) continue;
      for (const std::string& name : states.names(*parameter))
        own[parameter.key() + " " + name] = states.read(*parameter, name);
    }
    {
      const std::lock_guard lock(mutex_);
      states_.insert(own.begin(), own.end());
    }
    engine.mesh().world().barrier("collected")->wait();
    std::vector<uint64_t> digests;
    for (const auto& [name, values] : states_) {
      const at::Tensor tensor = values.contiguous();
      digests.push_back(
          checksum_of({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}));
    }
    engine.mesh().world().barrier("read")->wait();
    return checksum_of(std::as_bytes(std::span(digests)));
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> states_;
};

// Runs body(engine, step function, digest function) on each rank.
template <typename Body>
void train(const Way& way, const Body& body) {
  std::vector<Collected> collected(kSteps + 1);
  run_ranks(ranks_of(way.mesh), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kModel);
    const Pipeline pipeline = pipeline_of(model);
    Engine engine = divided_engine(model, way.config(), way.mesh, std::move(communicator), pipeline);
    body(
        engine, [&](int64_t step) { engine.train_batch(window_of(kModel, static_cast<int>(step), 1, 0)); },
        [&](int64_t step) { return collected[static_cast<size_t>(step)].digest(engine, model, pipeline); });
  });
}

void learn_digests(const Way& way, Told& told) {
  train(way, [&](Engine& engine, const auto& step, const auto& digest) {
    for (int number = 1; number <= kSteps; ++number) {
      step(number);
      const uint64_t found = digest(number);
      if (engine.mesh().world().rank() == 0) told.digests[number] = found;
    }
  });
}

// As in kills_test.cpp.
void train_on(const Way& way, uint64_t seed, const fs::path& folder, Told& told) {
  train(way, [&](Engine& engine, const auto& step, const auto& digest) {
    Random random(seed);  // the same numbers on all ranks
    const bool talks = engine.mesh().world().rank() == 0;
    if (latest_tag(local_file_system(), folder)) {
      engine.load_checkpoint(folder);
      expect(engine.global_steps() >= told.durable,
             "step " + std::to_string(engine.global_steps()) + " is loaded, and a later one had been saved");
      expect(digest(engine.global_steps()) == told.digests[engine.global_steps()],
             "another state after step " + std::to_string(engine.global_steps()));
    } else {
      expect(told.durable == 0, "no checkpoint, and one had been saved");
    }
    engine.mesh().world().barrier("loaded")->wait();
    for (int64_t number = engine.global_steps() + 1; number <= kSteps; ++number) {
      step(number);
      const bool asynchronous = any(random, 3) > 0;
      engine.save_checkpoint(folder, "", {.keep_last = 2, .asynchronous = asynchronous});
      if (talks) told.durable = asynchronous ? number - 1 : number;
    }
    engine.wait_for_checkpoint();
    if (talks) told.durable = kSteps;
  });
}

// A save with a fault after each step: either the step's tag is published, or the last one stays.
void save_with_faults(const Way& way, uint64_t seed, const fs::path& folder) {
  std::vector<std::vector<std::string>> errors(kSteps + 1, std::vector<std::string>(ranks_of(way.mesh)));
  train(way, [&](Engine& engine, const auto& step, const auto&) {
    Communicator& world = engine.mesh().world();
    Random same(seed);
    int64_t last = 0;
    for (int number = 1; number <= kSteps; ++number) {
      step(number);
      const int faulty = any(same, world.world_size());
      const Fault fault = any_fault(same);
      FaultyFileSystem files(local_file_system(), world.rank() == faulty ? fault : Fault{});
      EngineState& state = *state_of(engine);
      try {
        state.checkpoints.write_to(files);
        save_checkpoint(state, folder, "", {.keep_last = 3});
        engine.wait_for_checkpoint();
      } catch (const UserError& error) {
        errors[number][world.rank()] = error.what();
      }
      state.checkpoints.finish();  // the removal of old checkpoints uses `files` too
      world.barrier("saved")->wait();
      expect(errors[number][world.rank()] == errors[number][0],
             "another error: " + errors[number][world.rank()]);
      const auto latest = latest_tag(local_file_system(), folder);
      const std::string tag = kStepTag + std::to_string(number);
      if (errors[number][0].empty()) last = number;
      expect(last == 0 || latest == kStepTag + std::to_string(last) || latest == tag, "another latest");
      if (latest == tag) last = number;
      world.barrier("checked")->wait();
    }
  });
}

}  // namespace

TEST_CASE("A job of tensor ranks and stages that is killed at any moment resumes from its last checkpoint") {
  const int64_t kills = number_from("ZERORUN_KILLS", 10);
  Random random(static_cast<uint64_t>(number_from("ZERORUN_SEED", 1)) + 2'000'000);
  Told& told = shared_memory();
  int64_t killed = 0;
  while (killed < kills) {
    const TemporaryFolder folder;
    Way way{.mesh = kMeshes[any(random, 4)], .stage = any(random, 4)};
    if (way.stage > 0 && any(random, 3) == 0) way.states = folder / ".nvme";
    CAPTURE(killed, describe(way.mesh), way.stage);
    told.durable = 0;
    REQUIRE(in_child(told, {}, [&] { learn_digests(way, told); }) == 0);
    for (int64_t before = 0; told.durable < kSteps; before = told.durable) {
      const uint64_t seed = random();
      // Long enough to get on: a start takes a while.
      const std::chrono::milliseconds after(100 + any(random, 300));
      const int status = in_child(told, killed < kills ? after : std::chrono::milliseconds(0),
                                  [&] { train_on(way, seed, folder / "a", told); });
      INFO(told.failure.data());
      REQUIRE((status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)));
      CHECK(told.durable >= before);
      killed += status != 0;
    }
    REQUIRE(in_child(told, {}, [&] { train_on(way, 0, folder / "a", told); }) == 0);
  }
  std::printf("%lld kills of meshes\n", static_cast<long long>(killed));
}

TEST_CASE("If any file system call of a rank of a mesh fails, published checkpoints stay") {
  const int64_t faults = number_from("ZERORUN_FAULTS", 30);
  Random random(static_cast<uint64_t>(number_from("ZERORUN_SEED", 1)) + 3'000'000);
  Told& told = shared_memory();
  int64_t tried = 0;
  for (; tried < faults; tried += kSteps) {
    const TemporaryFolder folder;
    Way way{.mesh = kMeshes[any(random, 4)], .stage = any(random, 4)};
    if (way.stage > 0 && any(random, 3) == 0) way.states = folder / ".nvme";
    const uint64_t seed = random();
    CAPTURE(tried, describe(way.mesh), way.stage, seed);
    const int status = in_child(told, {}, [&] {
      learn_digests(way, told);
      save_with_faults(way, seed, folder / "a");
      if (!latest_tag(local_file_system(), folder / "a")) return;
      const Way other{.mesh = {1, 1, 1}, .stage = 1};
      for (const Way& reader : {way, other}) {
        for (const std::string& tag : published_tags(local_file_system(), folder / "a")) {
          train(reader, [&](Engine& engine, const auto&, const auto& digest) {
            engine.load_checkpoint(folder / "a", tag);
            expect(digest(engine.global_steps()) == told.digests[engine.global_steps()],
                   "another state in " + tag);
          });
        }
      }
    });
    INFO(told.failure.data());
    REQUIRE(status == 0);
  }
  std::printf("%lld saves of meshes with faults\n", static_cast<long long>(tried));
}

}  // namespace zerorun::testing
