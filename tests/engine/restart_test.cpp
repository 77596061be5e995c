// Tests that the stored slices and the restart items are the whole state of a training: if both are copied at
// one step and put back later, training continues with the same bits.
#include <catch2/catch.hpp>
#include <map>

#include "comm/thread_communicator.h"
#include "engine/saving/restart_items.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

struct Snapshot {
  std::vector<at::Tensor> slices;
  std::map<std::string, RestartValue> items;
};

// Finishes the all-gathers of updated slices and releases all gathered parameters.
void finish_open_step(StateTraining& training) {
  if (training.state->residency) training.state->residency->finish_iteration();
}

// The part of a tensor that this rank saves and restores. If the tensor is in shared memory, this is the
// rank's own slice.
at::Tensor part_of(const StateTensor& state) {
  return state.home == Home::shared ? state.own : state.memory;
}

Snapshot take(StateTraining& training) {
  finish_open_step(training);
  Snapshot snapshot;
  training.state->store.for_each(
      [&](int, const StateTensor& state) { snapshot.slices.push_back(part_of(state).clone()); });
  for (const RestartItem& item : restart_items(*training.state)) snapshot.items[item.name] = item.read();
  return snapshot;
}

void put_back(StateTraining& training, const Snapshot& snapshot, const std::string& forgotten = "") {
  finish_open_step(training);
  Communicator& communicator = training.state->mesh.data();
  communicator.barrier("nobody reads")->wait();
  size_t next = 0;
  training.state->store.for_each(
      [&](int, const StateTensor& state) { part_of(state).copy_(snapshot.slices[next++]); });
  for (const RestartItem& item : restart_items(*training.state)) {
    if (item.name != forgotten) item.write(snapshot.items.at(item.name));
  }
  communicator.barrier("all have written")->wait();
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  expect(a.slices.size() == b.slices.size(), "other tensors");
  for (size_t i = 0; i < a.slices.size(); ++i)
    expect(at::equal(a.slices[i], b.slices[i]), "slice tensor " + std::to_string(i) + " differs");
  for (const auto& [name, value] : a.items) expect(b.items.at(name) == value, name + " differs");
}

constexpr int kBefore = 2;
constexpr int kBehind = 4;

std::vector<float> go_on(StateTraining& training) {
  std::vector<float> losses;
  for (int step = kBefore; step < kBefore + kBehind; ++step) losses.push_back(training.step(step));
  return losses;
}

constexpr const char* kSchedule =
    R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 6}})";

}  // namespace

TEST_CASE("A training whose slices and restart items are put back continues with the same bits") {
  const std::vector<StateCase> cases = all_state_cases();
  const std::string precisions[] = {"fp32", "bf16", "fp16"};
  for (const auto& setting : settings(cases.size(), 4, 3, 3)) {
    const StateCase& how = cases[setting[0]];
    const int stage = setting[1];
    const std::string& precision = precisions[setting[2]];
    const int ranks = setting[3] == 0 ? 1 : 3;
    const bool shares_memory = setting[3] == 2;
    CAPTURE(how.name, stage, precision, ranks, shares_memory);
    CHECK_NOTHROW(run_ranks(
        ranks,
        [&](std::shared_ptr<Communicator> communicator) {
          StateTraining training(how, stage, precision, communicator, kSchedule);
          for (int step = 0; step < kBefore; ++step) training.step(step);
          const Snapshot at_the_step = take(training);
          const std::vector<float> losses = go_on(training);
          const Snapshot at_the_end = take(training);
          put_back(training, at_the_step);
          expect(go_on(training) == losses, "other losses");
          expect_same(take(training), at_the_end);
        },
        std::chrono::seconds(60), shares_memory));
  }
}

TEST_CASE("Slices and restart items can be put back before the first step too") {
  for (const StateCase& how : all_state_cases()) {
    CAPTURE(how.name);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(how, 2, "bf16", communicator, kSchedule);
      const Snapshot at_the_start = take(training);
      const std::vector<float> losses = go_on(training);
      put_back(training, at_the_start);
      expect(go_on(training) == losses, "other losses");
    }));
  }
}

// Uses one rank, because rank-threads share one random number generator.
TEST_CASE("Training differs if one restart item is not put back") {
  const StateCase adam = all_state_cases().front();
  auto communicator = make_thread_communicators(1, std::chrono::seconds(60)).front();
  for (const std::string forgotten :
       {"", "generator.cpu", "steps.optimizer", "steps.global", "group 0.lr", "loss_scaler.updates"}) {
    CAPTURE(forgotten);
    torch::manual_seed(1);
    StateTraining training(adam, 2, "fp16", communicator, kSchedule, /*dropout=*/0.5);
    for (int step = 0; step < kBefore; ++step) training.step(step);
    const Snapshot at_the_step = take(training);
    const std::vector<float> losses = go_on(training);
    const double scale = training.engine->loss_scale();
    put_back(training, at_the_step, forgotten);
    const bool same = go_on(training) == losses && training.engine->loss_scale() == scale;
    CHECK(same == forgotten.empty());
  }
}

}  // namespace zerorun::testing
