// Tests trainings that are killed at random moments, and file systems that fail at random calls. A published
// checkpoint must be complete, and training must resume from it with the same bits. Environment variables:
// ZERORUN_KILLS and ZERORUN_FAULTS are the numbers of kills and faults (default 50), ZERORUN_SEED is the
// random seed (default 1).
#include <catch2/catch.hpp>
#include <chrono>

#include "checkpoint/checksums.h"
#include "checkpoint/publication.h"
#include "engine/saving/checkpoints.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/kills_support.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

struct Way {
  int ranks;
  std::string precision;
  uint64_t data;
};

uint64_t digest_of(const CollectedState& state) {
  std::vector<uint64_t> digests;
  for (const auto& [name, tensor] : state.whole())
    digests.push_back(
        checksum_of({static_cast<const std::byte*>(tensor.contiguous().const_data_ptr()), tensor.nbytes()}));
  return checksum_of(std::as_bytes(std::span(digests)));
}

// Adds this rank's state and returns the digest of all ranks' state. A collective.
uint64_t digest_of_all(CollectedState& state, StateTraining& training) {
  state.add(training);
  training.state->mesh.data().barrier("collected")->wait();
  const uint64_t digest = digest_of(state);
  training.state->mesh.data().barrier("read")->wait();
  return digest;
}

int step_of_data(const Way& way, int64_t step) {
  return static_cast<int>(way.data % 1000) * 100 + static_cast<int>(step);
}

void learn_digests(const Way& way, Told& told) {
  std::vector<CollectedState> states(kSteps + 1);
  run_ranks(way.ranks, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 1, way.precision, communicator);
    for (int step = 1; step <= kSteps; ++step) {
      training.step(step_of_data(way, step));
      const uint64_t digest = digest_of_all(states[step], training);
      if (training.state->mesh.data().rank() == 0) told.digests[step] = digest;
    }
  });
}

// Resumes from the newest checkpoint, and trains to the end with a save after each step. Throws if the digest
// of the loaded state differs from the digest that was recorded for its step.
void train_on(const Way& way, int stage, uint64_t seed, const std::filesystem::path& folder, Told& told) {
  CollectedState loaded;
  run_ranks(way.ranks, [&](std::shared_ptr<Communicator> communicator) {
    Random random(seed);  // the same numbers on all ranks
    const bool talks = communicator->rank() == 0;
    const StateCase adam = all_state_cases().front();
    const bool is_in_files = stage > 0 && any(random, 2) == 0;
    StateTraining training(is_in_files ? in_files(adam, folder / ".nvme") : adam, stage, way.precision,
                           communicator);
    if (latest_tag(local_file_system(), folder)) {
      training.engine->load_checkpoint(folder);
      const int64_t step = training.engine->global_steps();
      expect(step >= told.durable, "step " + std::to_string(step) + " is loaded, and step " +
                                       std::to_string(told.durable) + " had been saved");
      expect(digest_of_all(loaded, training) == told.digests[step],
             "another state after step " + std::to_string(step));
    } else {
      expect(told.durable == 0,
             "no checkpoint, and step " + std::to_string(told.durable) + " had been saved");
    }
    communicator->barrier("loaded")->wait();
    for (int64_t step = training.engine->global_steps() + 1; step <= kSteps; ++step) {
      training.step(step_of_data(way, step));
      const bool asynchronous = any(random, 3) > 0;
      training.engine->save_checkpoint(folder, "", {.keep_last = 2, .asynchronous = asynchronous});
      if (talks) told.durable = asynchronous ? step - 1 : step;
    }
    training.engine->wait_for_checkpoint();
    if (talks) told.durable = kSteps;
  });
}

}  // namespace

TEST_CASE("A training that is killed at any moment resumes from its last checkpoint with the same bits") {
  const int64_t kills = number_from("ZERORUN_KILLS", 50);
  Random random(static_cast<uint64_t>(number_from("ZERORUN_SEED", 1)));
  Told& told = shared_memory();
  int64_t killed = 0;
  int trainings = 0;
  while (killed < kills) {
    const TemporaryFolder folder;
    const Way way{1 + any(random, 3), std::vector<std::string>{"fp32", "bf16"}[any(random, 2)], random()};
    told.durable = 0;
    REQUIRE(in_child(told, {}, [&] { learn_digests(way, told); }) == 0);
    while (told.durable < kSteps) {
      const int stage = any(random, 4);
      const uint64_t seed = random();
      const std::chrono::milliseconds after(1 + any(random, 120));
      CAPTURE(killed, way.ranks, way.precision, stage, told.durable.load());
      const int status = in_child(told, killed < kills ? after : std::chrono::milliseconds(0),
                                  [&] { train_on(way, stage, seed, folder / "a", told); });
      INFO(told.failure.data());
      REQUIRE((status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)));
      killed += status != 0;
    }
    // Loads the last published checkpoint, which must be correct too.
    REQUIRE(in_child(told, {}, [&] { train_on(way, 0, 0, folder / "a", told); }) == 0);
    // A killed process may leave one tag more than keep_last, which the next save would remove.
    CHECK(published_tags(local_file_system(), folder / "a").size() <= 3);
    ++trainings;
  }
  std::printf("%lld kills of %d trainings\n", static_cast<long long>(killed), trainings);
}

TEST_CASE("If any file system call fails, published checkpoints stay, and all ranks get the same error") {
  const int64_t faults = number_from("ZERORUN_FAULTS", 50);
  Random random(static_cast<uint64_t>(number_from("ZERORUN_SEED", 1)) + 1'000'000);
  Told& told = shared_memory();
  int64_t tried = 0;
  while (tried < faults) {
    const TemporaryFolder folder;
    const Way way{1 + any(random, 3), std::vector<std::string>{"fp32", "bf16"}[any(random, 2)], random()};
    const int stage = any(random, 4);
    const uint64_t seed = random();
    CAPTURE(tried, way.ranks, way.precision, stage, seed);
    const int status = in_child(told, {}, [&] {
      learn_digests(way, told);
      std::vector<std::vector<std::string>> errors(kSteps + 1, std::vector<std::string>(way.ranks));
      run_ranks(way.ranks, [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        Random same(seed);
        StateTraining training(all_state_cases().front(), stage, way.precision, communicator);
        int64_t last = 0;
        for (int step = 1; step <= kSteps; ++step) {
          training.step(step_of_data(way, step));
          const int faulty = any(same, way.ranks);
          const Fault fault = any_fault(same);
          FaultyFileSystem files(local_file_system(), rank == faulty ? fault : Fault{});
          try {
            training.state->checkpoints.write_to(files);
            save_checkpoint(*training.state, folder / "a", "", {.keep_last = 3});
            training.engine->wait_for_checkpoint();
          } catch (const UserError& error) {
            errors[step][rank] = error.what();
          }
          training.state->checkpoints.finish();  // the removal of old checkpoints uses `files` too
          communicator->barrier("saved")->wait();
          expect(errors[step][rank] == errors[step][0], "another error: " + errors[step][rank]);
          const auto latest = latest_tag(local_file_system(), folder / "a");
          const std::string tag = kStepTag + std::to_string(step);
          if (errors[step][0].empty()) last = step;
          // If a save fails after its last rename, its tag is already the latest. Otherwise the previous tag
          // is still the latest.
          expect(last == 0 || latest == kStepTag + std::to_string(last) || latest == tag, "another latest");
          if (latest == tag) last = step;
          communicator->barrier("checked")->wait();
        }
      });
      told.durable = 0;
      if (!latest_tag(local_file_system(), folder / "a")) return;
      for (const std::string& tag : published_tags(local_file_system(), folder / "a")) {
        CollectedState loaded;
        run_ranks(way.ranks, [&](std::shared_ptr<Communicator> communicator) {
          StateTraining training(all_state_cases().front(), 3 - stage, way.precision, communicator);
          training.engine->load_checkpoint(folder / "a", tag);
          const int64_t step = training.engine->global_steps();
          expect(digest_of_all(loaded, training) == told.digests[step], "another state in " + tag);
        });
      }
    });
    INFO(told.failure.data());
    REQUIRE(status == 0);
    tried += kSteps;
  }
  std::printf("%lld saves with faults\n", static_cast<long long>(tried));
}

}  // namespace zerorun::testing
