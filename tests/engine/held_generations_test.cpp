// Tests generations in memory (zerorun --hold_every) with the launcher's memory in this process: what is
// restored from them, and when a checkpoint is restored instead.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/held_generation.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/held_launcher.h"
#include "tests/engine/state_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Attempt {
  std::string path;   // of what was restored; empty: nothing
  int64_t steps = 0;  // that it begins with
  CollectedState::Whole restored;
  std::vector<float> losses;  // of rank 0
  std::string log;
};

struct Setting {
  int ranks = 2;
  int stage = 1;
  std::string precision = "fp32";
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})";
  int save_after = -1;  // number of steps after which a checkpoint is saved
};

// Goes on with the newest state of the folder until so many steps have been taken.
Attempt train(const Setting& setting, const fs::path& folder, int64_t until) {
  Attempt attempt;
  CollectedState restored;
  StderrCapture capture;
  run_ranks(setting.ranks, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "AdamW", .optimizer = setting.optimizer}, setting.stage,
                           setting.precision, communicator);
    const auto found = training.engine->load_newest(folder);
    if (communicator->rank() == 0) {
      if (found) attempt.path = found->path;
      attempt.steps = training.engine->global_steps();
    }
    restored.add(training);
    while (training.engine->global_steps() < until) {
      const float loss = training.step(static_cast<int>(training.engine->global_steps()));
      if (communicator->rank() == 0) attempt.losses.push_back(loss);
      // While a save is under way nothing is held.
      if (training.engine->global_steps() == setting.save_after)
        training.engine->save_checkpoint(folder, "", {.asynchronous = false});
    }
    training.engine->wait_for_checkpoint();
  });
  attempt.log = capture.text();
  attempt.restored = restored.whole();
  return attempt;
}

// The same without memory, in one go: what it begins with after `steps` steps, and the losses of two more.
Attempt expected_after(const Setting& setting, int64_t steps) {
  const TemporaryFolder folder;
  Setting saves = setting;
  saves.save_after = static_cast<int>(steps);
  train(saves, folder / "saves", steps);
  return train(setting, folder / "saves", steps + 2);
}

// The newest slot first.
std::vector<int> slots_of(const OpenHeldMemory& memory, int rank) {
  std::vector<int> slots;
  int64_t newest = -1;
  for (const UniqueFd& slot : memory.ranks[static_cast<size_t>(rank)]) {
    const auto there = checkpoint::read_generation(slot.get());
    const int64_t step = there ? there->step : -1;
    slots.insert(step > newest ? slots.begin() : slots.end(), slot.get());
    newest = std::max(newest, step);
  }
  return slots;
}

}  // namespace

TEST_CASE("an engine goes on from memory to the bit, at all stages") {
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Setting setting{.ranks = 1 + (stage + 1) % 3, .stage = stage, .precision = precision};
      CAPTURE(precision, stage, setting.ranks);
      const Attempt expected = expected_after(setting, 3);
      const TemporaryFolder folder;
      const HeldLauncher launcher(setting.ranks);
      train(setting, folder / "saves", 3);
      const Attempt again = train(setting, folder / "saves", 5);
      CHECK(again.path == "memory/global_step3");
      CHECK(again.steps == 3);
      CHECK_THAT(again.log, Contains("step 3 from memory"));
      check_same(again.restored, expected.restored);
      CHECK(again.losses == expected.losses);
    }
  }
}

TEST_CASE("only generations that all ranks have whole are restored, and only newer ones than checkpoints") {
  const Setting setting{.save_after = 2};
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const HeldLauncher launcher(setting.ranks);
  train(setting, folder, 5);
  const OpenHeldMemory memory = open_held_memory();
  REQUIRE(memory.ranks.size() == 2);

  SECTION("a rank was killed before it had held the last step") {
    checkpoint::clear_generation(slots_of(memory, 1).front());
    const Attempt again = train(setting, folder, 4);
    CHECK(again.path == "memory/global_step4");
    const Attempt expected = expected_after(setting, 4);
    check_same(again.restored, expected.restored);
  }
  SECTION("after that the next generation is not written over the one that all have") {
    checkpoint::clear_generation(slots_of(memory, 1).front());
    train(setting, folder, 5);  // goes on from 4, holds 5
    checkpoint::clear_generation(slots_of(memory, 0).front());
    CHECK(train(setting, folder, 4).path == "memory/global_step4");
  }
  SECTION("a rank has none") {
    for (const int slot : slots_of(memory, 1)) checkpoint::clear_generation(slot);
    const Attempt again = train(setting, folder, 2);
    CHECK(again.path == folder / "global_step2");
    CHECK_THAT(again.log, Contains("load_newest(): ") && !Contains("from memory"));
  }
  SECTION("a description is damaged") {
    for (const int slot : slots_of(memory, 0)) {
      const auto there = checkpoint::read_generation(slot);
      REQUIRE(there);
      int64_t end = 0;
      for (const auto& [name, place] : there->places) end = std::max(end, place.offset + place.bytes);
      const char other = '#';
      REQUIRE(::pwrite(slot, &other, 1, end + 5) == 1);
    }
    const Attempt again = train(setting, folder, 2);
    CHECK(again.path == folder / "global_step2");
    CHECK_THAT(again.log, Contains("rank 0: one is passed over: its description is not what was written"));
  }
  SECTION("the checkpoint is newer") {
    Setting saves = setting;
    saves.save_after = 7;
    launcher.hide();
    train(saves, folder, 7);
    launcher.show();
    CHECK(train(saves, folder, 7).path == folder / "global_step7");
  }
  SECTION("another folder is another run") {
    CHECK(train(setting, temporary / "other", 1).path.empty());
  }
  SECTION("the program has loaded another checkpoint since") {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training({.name = "AdamW", .optimizer = setting.optimizer}, 1, "fp32", communicator);
      training.engine->load_newest(folder);
      training.engine->load_checkpoint(folder);
    });
    CHECK(train(setting, folder, 2).path == folder / "global_step2");
  }
}

TEST_CASE("a job does not go on behind a save that was begun and not published") {
  const bool fails_later = GENERATE(false, true);
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const Setting setting;
  const HeldLauncher launcher(setting.ranks);
  std::ofstream(temporary / "file") << "no folder";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "AdamW", .optimizer = setting.optimizer}, 1, "fp32", communicator);
    training.engine->load_newest(folder);
    for (int step = 0; step < 3; ++step) training.step(step);
    try {
      training.engine->save_checkpoint(temporary / "file" / "saves", "", {.asynchronous = fails_later});
      training.step(3);  // not held either: nobody knows yet that the save has failed
    } catch (const std::exception&) {
    }
    try {
      training.engine->wait_for_checkpoint();
    } catch (const std::exception&) {
    }
  });
  CHECK(train(setting, folder, 3).path == "memory/global_step2");
}

TEST_CASE("an engine that goes on asks for what was there before it") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const Setting setting;
  const HeldLauncher launcher(setting.ranks);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "AdamW", .optimizer = setting.optimizer}, 1, "fp32", communicator);
    training.engine->load_newest(folder);
    training.step(0);
    training.engine->save_checkpoint(folder, "", {.asynchronous = false});
    training.step(1);
    training.step(2);
    expect(training.engine->load_newest(folder)->path == folder / "global_step1",
           "the checkpoint, not step 3");
    expect(training.engine->global_steps() == 1, "one step");
  });
}

TEST_CASE("generations of another job are refused") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const Setting setting{.save_after = 1};
  const HeldLauncher launcher(setting.ranks);
  train(setting, folder, 3);

  Setting fewer = setting;
  fewer.ranks = 1;
  const Attempt other = train(fewer, folder, 1);
  CHECK(other.path == folder / "global_step1");
  CHECK_THAT(other.log, Contains("the launcher has memory for 2 ranks, and the job has another number"));

  Setting sgd = setting;
  sgd.optimizer = R"({"type": "SGD", "params": {"lr": 0.01}})";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "SGD", .optimizer = sgd.optimizer}, 1, "fp32", communicator);
    expect_throws([&] { training.engine->load_newest(folder); }, "the checkpoint's optimizer is AdamW",
                  "a generation of another optimizer");
  });
}

TEST_CASE("every Nth step is held, and what cannot be is refused by name") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const Setting setting;
  const HeldLauncher launcher(setting.ranks, 3);
  train(setting, folder, 8);
  const Attempt again = train(setting, folder, 6);
  CHECK(again.path == "memory/global_step6");

  fs::create_directory(temporary / "swap");
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "AdamW", .optimizer = setting.optimizer}, 1, "fp32", communicator);
    training.engine->load_newest(temporary / "program's");
    training.step(0);
    training.engine->save_checkpoint(temporary / "program's", "", {.client_state = R"({"epoch": 1})"});
    training.engine->wait_for_checkpoint();
    StateTraining in_files(
        testing::in_files({.name = "AdamW", .optimizer = setting.optimizer}, temporary / "swap"), 1, "fp32",
        communicator);
    in_files.engine->load_newest(temporary / "in files");
  });
  const std::string log = capture.text();
  CHECK_THAT(log, Contains("from now on no state is held in memory, restarts are from checkpoints alone: the "
                           "program saves a client_state: give load_newest() a function") &&
                      Contains("state is kept in files (offload to nvme)"));
}

TEST_CASE("a program's client_state is held, as it is after each step") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const HeldLauncher launcher(2);
  const auto go_on = [&](int64_t until, const std::string& expected) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training({.name = "AdamW", .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})"},
                             1, "fp32", communicator);
      const auto state = [&] {
        const int64_t steps = training.engine->global_steps();
        return ClientState{.json = R"({"step": )" + std::to_string(steps) + "}",
                           .tensors = {{"steps", at::full({3}, steps, at::kLong)}}};
      };
      const auto found = training.engine->load_newest(folder, {.client_state = state});
      expect(training.engine->holds_generations(), "generations are held");
      expect((found ? found->client_state : "none") == expected, found ? found->client_state : "none");
      if (found) {
        const at::Tensor steps = found->client_tensors.at("steps");
        expect(at::equal(steps, at::full({3}, training.engine->global_steps(), at::kLong)), "the tensor");
      }
      while (training.engine->global_steps() < until)
        training.step(static_cast<int>(training.engine->global_steps()));
      if (until == 2)
        training.engine->save_checkpoint(
            folder, "",
            {.client_state = state().json, .client_tensors = state().tensors, .asynchronous = false});
      expect(training.engine->holds_generations(), "also after a save with a client_state");
    });
  };
  go_on(2, "none");
  go_on(5, R"({"step":2})");
  go_on(6, R"({"step":5})");

  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training({.name = "AdamW", .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})"}, 1,
                           "fp32", communicator);
    training.engine->load_newest(temporary / "other",
                                 {.client_state = [] { return ClientState{.json = "{"}; }});
    expect(!training.engine->holds_generations(), "nothing is held");
  });
  CHECK_THAT(capture.text(), Contains("--hold_every: no state is held in memory") &&
                                 Contains("RestoreOptions::client_state"));
}

// For figures; not part of the suite.
TEST_CASE("what holding generations costs", "[.cost]") {
  const TemporaryFolder temporary;
  for (const std::string precision : {"fp32", "bf16"}) {
    const HeldLauncher launcher(2);
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      const StateCase how{
          .name = "AdamW", .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})", .width = 500'000};
      StateTraining training(how, 1, precision, communicator, "", 0, 8 << 20);
      training.engine->load_newest(temporary / precision);
      for (int step = 0; step < 6; ++step) training.step(step);
    });
  }
}

TEST_CASE("two engines of a process cannot both hold their state") {
  const TemporaryFolder temporary;
  const HeldLauncher launcher(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const StateCase how{.name = "AdamW", .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})"};
    StateTraining first(how, 1, "fp32", communicator), second(how, 1, "fp32", communicator);
    first.engine->load_newest(temporary / "first");
    expect_throws([&] { second.engine->load_newest(temporary / "second"); }, "a second engine",
                  "a second engine that holds its state");
  });
}

}  // namespace zerorun::testing
