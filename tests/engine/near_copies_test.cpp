// Tests zero_hpz_partition_size: parameters have a second copy among neighbouring ranks, and gathers inside
// such a group give the same bits as those among all ranks.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr int kNearRanks = 4;

// Gathers each bucket for the forward and again for the backward.
StateCase gathering_twice(int near) {
  StateCase how = all_state_cases().front();
  how.zero = R"(, "stage3_max_reuse_distance": 0, "zero_hpz_partition_size": )" + std::to_string(near);
  return how;
}

std::string accumulating(int micro_steps) {
  return R"(, "gradient_accumulation_steps": )" + std::to_string(micro_steps);
}

struct NearRun {
  CollectedState state;
  std::vector<float> losses;  // of rank 0
  double far = 0;             // elements that rank 0 sent in gathers among all ranks, in the last step
  double once = 0;            // elements that a rank sends if it gathers each trained bucket once
  int64_t gathers = 0;        // in the last step, of both kinds
};

using Between = std::function<void(StateTraining&, int step)>;

// Four optimizer steps. `between`: called before each step.
void train_near(NearRun& run, int near, const std::string& precision, int micro_steps,
                const Between& between = {}) {
  run_ranks(
      kNearRanks,
      [&](std::shared_ptr<Communicator> world) {
        StateTraining training(gathering_twice(near), 3, precision, world, accumulating(micro_steps));
        const bool is_first = world->rank() == 0;
        for (int step = 0; step < 4; ++step) {
          if (between) between(training, step);
          world->volume().reset();
          const int64_t gathers = training.engine->residency().gathers;
          for (int micro = 0; micro < micro_steps; ++micro) {
            const float loss = training.step(step * micro_steps + micro);
            if (is_first) run.losses.push_back(loss);
          }
          if (!is_first) continue;
          run.once = 0;
          for (int bucket = 0; bucket < training.state->buckets.trained_count(); ++bucket)
            run.once +=
                static_cast<double>(training.state->store.layout(bucket).slice_numel * (kNearRanks - 1));
          run.far = world->volume().elements(Collective::all_gather);
          run.gathers = training.engine->residency().gathers - gathers;
        }
        run.state.add(training);
        world->barrier("the end")->wait();
      },
      std::chrono::seconds(60), /*shares_memory=*/false);
}

// StateTraining::step() divides its samples among 1, 2, 3, 4 or 6 ranks only.
float step_of_eight(StateTraining& training, int number) {
  const int rank = training.engine->communicator().rank();
  const at::Tensor loss = training.model->loss(
      values({2, 61}, static_cast<uint64_t>(100 * number + rank)).to(training.engine->dtype()));
  training.engine->backward(loss);
  training.engine->step();
  return loss.item<float>();
}

void check_same_runs(const NearRun& a, const NearRun& b) {
  CHECK(a.losses == b.losses);
  check_same(a.state.whole(), b.state.whole());
}

}  // namespace

TEST_CASE(
    "Second copies give the bits of stage 3; only the first gather after an update is among all ranks") {
  for (const auto& [kind, near_exponent, further] : settings(3, 2, 2)) {
    const std::string precision = std::vector<std::string>{"fp32", "bf16", "fp16"}[static_cast<size_t>(kind)];
    const int near = near_exponent == 0 ? 2 : 4, micro_steps = 1 + 2 * further;
    CAPTURE(precision, near, micro_steps);
    NearRun plain, copied;
    train_near(plain, 1, precision, micro_steps);
    train_near(copied, near, precision, micro_steps);
    check_same_runs(plain, copied);
    CHECK(copied.gathers == plain.gathers);
    REQUIRE(plain.far > 0);
    if (near == kNearRanks) {  // all ranks would be one group
      CHECK(copied.far == plain.far);
      continue;
    }
    // Each trained bucket once after the update; frozen ones are not gathered among all ranks again.
    CHECK(copied.far == copied.once);
    CHECK(copied.far < plain.far);
  }
}

TEST_CASE("Second copies follow what a program writes: by operators, in scopes, and from checkpoints") {
  const std::string precision = GENERATE("fp32", "bf16");
  const int way = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(precision, way);
  const TemporaryFolder folder;
  const Between write = [&](StateTraining& training, int step) {
    const torch::NoGradGuard no_grad;
    Engine& engine = *training.engine;
    if (step == 0) engine.save_checkpoint(folder / (std::to_string(way) + precision), "start");
    if (step != 2) return;
    if (way == 0) training.model->first.mul_(0.5);
    if (way == 1) {
      GatheredParameters scope(engine, {training.model->first, training.model->fixed}, /*modifier_rank=*/1);
      if (engine.communicator().rank() == 1) {
        training.model->first.add_(0.25);
        training.model->fixed.mul_(2);
      }
    }
    if (way == 2) {
      training.model->fixed.neg_();                                 // other values than the checkpoint's
      training.model->loss(values({3, 61}, 1).to(engine.dtype()));  // copies are current
      engine.load_checkpoint(folder / (std::to_string(way) + precision), "start");
    }
    if (way == 4) {  // a scope that only reads, which one rank leaves by an exception
      try {
        const GatheredParameters scope(engine, {training.model->first});
        if (engine.communicator().rank() == 3) throw std::runtime_error("a fault that the program catches");
      } catch (const std::runtime_error&) {
      }
    }
    if (way == 3) {  // frozen values only
      training.model->fixed.neg_();
    }
  };
  NearRun plain, copied;
  train_near(plain, 1, precision, 1, write);
  train_near(copied, 2, precision, 1, write);
  check_same_runs(plain, copied);
}

TEST_CASE("Second copies inside of replicas: the bits of replicas without them") {
  std::vector<float> losses[2];
  CollectedState states[2];
  for (const int near : {1, 2}) {
    run_ranks(
        8,
        [&](std::shared_ptr<Communicator> world) {
          StateTraining training(gathering_twice(near), 3, "bf16", world,
                                 R"(, "zerorun": {"mesh": {"replicate": 2}})");
          expect((training.state->mesh.near() != nullptr) == (near == 2),
                 "groups of two in replicas of four");
          for (int step = 0; step < 3; ++step) {
            const float loss = step_of_eight(training, step);
            if (world->rank() == 0) losses[near - 1].push_back(loss);
          }
          states[near - 1].add(training);
          world->barrier("the end")->wait();
        },
        std::chrono::seconds(60), /*shares_memory=*/false);
  }
  CHECK(losses[0] == losses[1]);
  check_same(states[0].whole(), states[1].whole());
}

TEST_CASE("A number of ranks for second copies that does not divide the data ranks is refused") {
  CHECK_THROWS_WITH(run_ranks(
                        kNearRanks,
                        [&](std::shared_ptr<Communicator> world) {
                          StateTraining training(gathering_twice(3), 3, "fp32", world);
                        },
                        std::chrono::seconds(60), /*shares_memory=*/false),
                    Contains("zero_hpz_partition_size 3 does not divide the 4 data ranks"));
}

}  // namespace zerorun::testing
