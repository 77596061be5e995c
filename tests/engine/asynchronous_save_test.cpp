// Tests checkpoints that are written while training continues. A checkpoint must have the state at the time
// of the call, whatever change to the state follows, and however much the writer has written by then.
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <map>

#include "base/error.h"
#include "checkpoint/publication.h"
#include "engine/gathered_parameters.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Catch::Matchers::Contains;

struct Change {
  std::string name;
  std::function<void(StateTraining&)> make;
  int last_stage = 3;  // last stage at which the program can make this change
};

void write_raw(const at::Tensor& tensor) {
  std::memset(tensor.mutable_data_ptr(), 0x3f, tensor.nbytes());
}

std::vector<Change> all_changes() {
  return {
      {"steps", [](StateTraining&) {}},
      {"an operator", [](StateTraining& t) { t.model->last.mul_(2); }},
      {"an operator on a view", [](StateTraining& t) { t.model->last[1].fill_(3); }},
      {"data()", [](StateTraining& t) { t.model->first.data().fill_(-1); }},
      {"a scope of a modifier",
       [](StateTraining& t) {
         GatheredParameters scope(*t.engine, {t.model->last, t.model->bias}, 1);
         if (t.state->mesh.data().rank() != 1) return;
         t.model->last.fill_(0.25);
         write_raw(t.model->bias);
       }},
      {"a scope, by all ranks",
       [](StateTraining& t) {
         GatheredParameters scope(*t.engine, {t.model->last});
         t.model->last.fill_(0.125);
       }},
      {"raw access",
       [](StateTraining& t) {
         t.engine->synchronize();
         write_raw(t.model->first);
       },
       2},
      {"what is frozen", [](StateTraining& t) { t.model->fixed.fill_(9); }},
      {"what is frozen, raw", [](StateTraining& t) { write_raw(t.model->fixed); }, 2},
      {"a load", [](StateTraining&) {}},
  };
}

// Blocks the writer before one of its file system calls, until `promise` is set.
struct Gate {
  std::promise<void> promise;
  std::shared_future<void> opened = promise.get_future().share();
};

struct Setting {
  int stage;
  std::string precision;
  bool shares_memory;
  StateCase how;
  bool on_device_with_streams = false;
};

// Saves while each rank's writer is blocked before its file system call number `call`. Changes the state,
// trains two steps, then lets the writers continue. Returns whether any writer reached that call.
bool save_and_change(const Setting& setting, const Change& change, int64_t call,
                     const std::filesystem::path& folder, CollectedState& expected) {
  std::atomic<bool> came = false;
  Recording recordings[2];
  run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        Gate gate;
        FaultyFileSystem files(local_file_system(), {.call = call, .meanwhile = [&] {
                                                       came = true;
                                                       gate.opened.wait();
                                                     }});
        Recording& recording = recordings[communicator->rank()];
        if (setting.on_device_with_streams)
          communicator = make_recording_communicator(std::move(communicator), recording);
        StateTraining training(setting.how, setting.stage, setting.precision, communicator);
        training.step(0);
        training.step(1);
        {
          const torch::NoGradGuard no_grad;
          training.model->first.mul_(1.5);  // other ranks have not received this write when the save starts
        }
        training.state->checkpoints.write_to(files);
        save_checkpoint(*training.state, folder, "", {});
        expected.add(training);
        {
          const torch::NoGradGuard no_grad;
          change.make(training);
        }
        training.step(2);
        training.step(3);
        gate.promise.set_value();
        training.engine->wait_for_checkpoint();
      },
      std::chrono::seconds(60), setting.shares_memory);
  return came;
}

void check_loads(const Setting& setting, const std::filesystem::path& folder,
                 const CollectedState& expected) {
  CollectedState loaded;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(setting.how, setting.stage, setting.precision, communicator);
    training.engine->load_checkpoint(folder);
    loaded.add(training);
  });
  check_same(expected.whole(), loaded.whole());
}

// CHECKs that a save during which `change` is made has the state at the call. Returns what save_and_change()
// returns.
bool check_change(const Setting& setting, const Change& change, int64_t call) {
  CAPTURE(setting.stage, setting.precision, setting.shares_memory, setting.how.zero, change.name, call);
  const TemporaryFolder folder;
  CollectedState expected;
  bool came = false;
  REQUIRE_NOTHROW(came = save_and_change(setting, change, call, folder / "saves", expected));
  check_loads(setting, folder / "saves", expected);
  return came;
}

// CHECKs that each change was made during at least `least` saves.
void check_came(const std::map<std::string, int>& came, int least) {
  for (const auto& [change, count] : came) {
    CAPTURE(change);
    CHECK(count >= least);
  }
}

}  // namespace

TEST_CASE("State that changes while a save is running is saved as it was at the call") {
  const std::vector<Change> changes = all_changes();
  const int64_t calls[] = {0, 1, 3, 5, 8, 12};
  std::map<std::string, int> came;
  for (const auto& [number, call, stage, narrow, shares] :
       settings(changes.size(), std::size(calls), 4, 2, 2)) {
    const Change& change = changes[number];
    came[change.name] += check_change({std::min(stage, change.last_stage), narrow == 1 ? "bf16" : "fp32",
                                       shares == 1, all_state_cases().front()},
                                      change, calls[call]);
  }
  check_came(came, 4);
}

TEST_CASE("State that the host stores for a GPU is saved as it was at the call") {
  const std::vector<Change> changes = all_changes();
  const int64_t calls[] = {0, 3, 8};
  std::map<std::string, int> came;
  for (const auto& [number, call, stage, has_slices] : settings(changes.size(), std::size(calls), 3, 2)) {
    const Change& change = changes[number];
    StateCase how = all_state_cases().front();
    how.zero += R"(, "offload_optimizer": {"device": "cpu"})";
    if (has_slices == 1) how.zero += R"(, "offload_param": {"device": "cpu"})";
    came[change.name] +=
        check_change({std::min(1 + stage, change.last_stage), "bf16", false, how, true}, change, calls[call]);
  }
  check_came(came, 2);
}

TEST_CASE("With every optimizer a running save has the state at the call") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 2, 3);
  for (const StateCase& how : all_state_cases()) {
    CAPTURE(stage, how.name);
    const Setting setting{stage, "bf16", false, how};
    CollectedState expected;
    REQUIRE_NOTHROW(save_and_change(setting, all_changes().front(), 1, folder / how.name, expected));
    check_loads(setting, folder / how.name, expected);
  }
}

TEST_CASE("A save copies only state that changes before it is written") {
  const TemporaryFolder folder;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 2, "bf16", communicator);
    training.step(0);
    training.engine->save_checkpoint(folder / "a", "", {.asynchronous = false});
    training.step(1);
    expect(training.state->checkpoints.kept_bytes() == 0, "nothing was to be kept");
    expect(training.state->checkpoints.written_bytes() >= training.state->checkpoints.bytes(),
           "all is written");
  });
}

TEST_CASE("Each of several saves in a row has the state at its own call") {
  const TemporaryFolder folder;
  constexpr int kSaves = 8;
  std::vector<CollectedState> expected(kSaves);
  const StateCase adam = all_state_cases().front();
  run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam, 3, "fp32", communicator);
    for (int step = 0; step < kSaves; ++step) {
      training.step(step);
      training.engine->save_checkpoint(folder / "a");
      expected[step].add(training);
    }
  });
  for (int step = 0; step < kSaves; ++step) {
    CAPTURE(step);
    CollectedState loaded;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(adam, 1, "fp32", communicator);
      training.engine->load_checkpoint(folder / "a", "global_step" + std::to_string(step + 1));
      loaded.add(training);
    });
    check_same(expected[step].whole(), loaded.whole());
  }
}

TEST_CASE("After a failed save the wait throws on all ranks, and the next save succeeds") {
  const TemporaryFolder folder;
  const int faulty_rank = GENERATE(0, 1);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const bool faulty = communicator->rank() == faulty_rank;
    FaultyFileSystem files(local_file_system(), {.call = faulty ? 1 : -1, .error = ENOSPC});
    StateTraining training(all_state_cases().front(), 1, "fp32", communicator);
    training.step(0);
    training.state->checkpoints.write_to(files);
    save_checkpoint(*training.state, folder / "a", "", {});
    training.step(1);
    for (int time = 0; time < 2; ++time) {
      expect_throws([&] { training.engine->wait_for_checkpoint(); }, "make room on that disk", "a full disk");
    }
    training.engine->save_checkpoint(folder / "a");
    training.engine->wait_for_checkpoint();
    expect(published_tags(local_file_system(), folder / "a") == std::vector<std::string>{"global_step2"},
           "tags");
  });
}

TEST_CASE("On a device with streams each change of the state waits for the copy that a save makes") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16");
  const StateCase adam = all_state_cases().front();
  const Setting setting{stage, precision, false, adam};
  CollectedState expected;
  for (const bool drops : {false, true}) {
    CAPTURE(stage, precision, drops);
    CollectedState before;
    std::vector<Recording> recordings(2);
    if (drops) recordings[0].dropped = recordings[1].dropped = Handover::saved;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Recording& recording = recordings[static_cast<size_t>(communicator->rank())];
      StateTraining training(adam, stage, precision,
                             make_recording_communicator(std::move(communicator), recording));
      for (int step = 0; step < 3; ++step) {
        training.step(step);
        training.engine->save_checkpoint(folder / "a");
        if (step < 2) continue;
        before.add(training);
        const torch::NoGradGuard no_grad;
        training.model->last.mul_(2);
      }
      training.step(3);
    });
    check_loads(setting, folder / "a", before);
    for (const Recording& recording : recordings) {
      const auto& violations = recording.checker.violations();
      INFO((violations.empty() ? "" : violations.front()));
      CHECK(violations.empty() == !drops);
    }
  }
}

}  // namespace zerorun::testing
