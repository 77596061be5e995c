// Tests checkpoints between the micro-steps of an optimizer step, which contain the gradients accumulated so
// far. Only a training with the same number of ranks, precision and accumulation can continue from them.
// Stages 0 and 1 can read each other's checkpoints, and so can stages 2 and 3.
#include <catch2/catch.hpp>

#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr int kMicroSteps = 3;
constexpr int kWindows = 4;

struct Way {
  int stage;
  std::string precision;
  int ranks = 2;
  bool shares_memory = false;
  int micro_steps = kMicroSteps;
  std::string more = {};
  int64_t bucket_numel = 4096;
};

std::string settings_of(const Way& way) {
  return R"(, "gradient_accumulation_steps": )" + std::to_string(way.micro_steps) + way.more;
}

struct Outcome {
  std::vector<std::vector<float>> losses;  // by rank: losses of micro-steps after the checkpoint
  CollectedState at_the_end;
};

// Runs micro-step `number`. In micro-step `infinite`, rank 1's gradients are not finite.
float micro_step(StateTraining& training, int number, int infinite) {
  if (number != infinite || training.state->mesh.data().rank() != 1) return training.step(number);
  const at::Tensor loss = training.model->loss(
      values({5, 61}, static_cast<uint64_t>(100 * number + 1)).to(training.engine->dtype()));
  training.engine->backward(loss * INFINITY);
  training.engine->step();
  return loss.item<float>();
}

void run(const Way& way, int saved, int infinite, const std::filesystem::path& folder, bool loads,
         Outcome& outcome) {
  outcome.losses.resize(way.ranks);
  run_ranks(
      way.ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        StateTraining training(all_state_cases().front(), way.stage, way.precision, communicator,
                               settings_of(way), 0, way.bucket_numel);
        if (loads) {
          for (int micro = 0; micro < way.micro_steps; ++micro) training.step(50 + micro);
          training.engine->load_checkpoint(folder);
        } else {
          for (int micro = 0; micro < saved; ++micro) micro_step(training, micro, infinite);
          training.engine->save_checkpoint(folder);
        }
        for (int micro = saved; micro < kMicroSteps * kWindows; ++micro)
          outcome.losses[rank].push_back(micro_step(training, micro, infinite));
        outcome.at_the_end.add(training);
      },
      std::chrono::seconds(60), way.shares_memory);
}

std::string load_error(const Way& way, const std::filesystem::path& folder) {
  return user_error([&] {
    run_ranks(way.ranks, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(all_state_cases().front(), way.stage, way.precision, communicator,
                             settings_of(way));
      training.engine->load_checkpoint(folder);
    });
  });
}

}  // namespace

TEST_CASE("A checkpoint between micro-steps has their gradients: training continues with the same bits") {
  const TemporaryFolder folder;
  const std::string precisions[] = {"fp32", "bf16", "fp16"};
  // The last axis: whether rank 1's last gradients before the save are infinite.
  for (const auto& [stage, type, late, is_infinite] : settings(4, 3, 2, 2)) {
    const std::string& precision = precisions[type];
    const int saved = late == 1 ? 5 : 1;
    const int infinite = is_infinite == 1 ? saved - 1 : -1;
    const std::filesystem::path at =
        folder / std::to_string(((stage * 3 + type) * 2 + late) * 2 + is_infinite);
    Outcome written;
    run({.stage = stage, .precision = precision}, saved, infinite, at, false, written);
    for (const Way& reader : std::vector<Way>{
             {.stage = stage ^ 1, .precision = precision},
             {.stage = stage, .precision = precision, .shares_memory = true},
             {.stage = stage, .precision = precision, .bucket_numel = 1024},
         }) {
      CAPTURE(stage, precision, saved, is_infinite, reader.stage, reader.shares_memory, reader.bucket_numel);
      Outcome read;
      REQUIRE_NOTHROW(run(reader, saved, infinite, at, true, read));
      CHECK(read.losses == written.losses);
      check_same(written.at_the_end.whole(), read.at_the_end.whole());
    }
  }
}

TEST_CASE("A training with other settings cannot continue between micro-steps, and the error says why") {
  const TemporaryFolder folder;
  Outcome written;
  run({.stage = 2, .precision = "bf16"}, 4, -1, folder / "a", false, written);
  CHECK_THAT(load_error({.stage = 2, .precision = "bf16", .ranks = 3}, folder / "a"),
             Contains("ranks: 2 there, 3 here"));
  CHECK_THAT(load_error({.stage = 1, .precision = "bf16"}, folder / "a"),
             Contains("stages 2 and 3") && !Contains("ranks: "));
  CHECK_THAT(load_error({.stage = 3, .precision = "bf16", .micro_steps = 2}, folder / "a"),
             Contains("gradient_accumulation_steps: 3 there, 2 here"));
  CHECK_THAT(
      load_error({.stage = 3, .precision = "bf16", .more = R"(, "data_types": {"grad_accum_dtype": "bf16"})"},
                 folder / "a"),
      Contains("dtype of gradients: F32 there, BF16 here"));
  CHECK(load_error({.stage = 3, .precision = "bf16"}, folder / "a") == "no error");
}

TEST_CASE("load_newest() passes over checkpoints between micro-steps that other ranks have saved") {
  const TemporaryFolder folder;
  Outcome whole, between;
  run({.stage = 1, .precision = "fp32"}, kMicroSteps, -1, folder / "a", false, whole);
  run({.stage = 1, .precision = "fp32"}, kMicroSteps + 1, -1, folder / "a", false, between);
  const auto newest = [&](int ranks, int micro_steps) {
    std::string path;
    run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      const Way way{.stage = 1, .precision = "fp32", .micro_steps = micro_steps};
      StateTraining training(all_state_cases().front(), 1, "fp32", communicator, settings_of(way));
      const auto restored = training.engine->load_newest(folder / "a");
      if (communicator->rank() == 0 && restored) path = std::filesystem::path(restored->path).filename();
    });
    return path;
  };
  CHECK(newest(2, kMicroSteps) == "global_step1_micro1");
  CHECK(newest(1, kMicroSteps) == "global_step1");
  CHECK(newest(2, 2 * kMicroSteps) == "global_step1");
}

TEST_CASE("Gradients with another loss scale or precision are refused") {
  const TemporaryFolder folder;
  Outcome written;
  run({.stage = 0, .precision = "fp16", .ranks = 1}, 4, -1, folder / "a", false, written);
  CHECK_THAT(load_error({.stage = 0, .precision = "fp32", .ranks = 1}, folder / "a"),
             Contains("precision: fp16 there, fp32 here"));
  CHECK(load_error({.stage = 1, .precision = "fp16", .ranks = 1}, folder / "a") == "no error");
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 0, "fp16", communicator, settings_of({}));
    training.state->scaler.emplace(LossScaleConfig{.fixed = 128.0});
    expect_throws([&] { training.engine->load_checkpoint(folder / "a"); },
                  "loss scale (fp16.loss_scale): 16 there, 128 here", "another loss scale");
    // Nothing of it has been loaded: training goes on, and another checkpoint can be loaded.
    for (int micro = 0; micro < kMicroSteps; ++micro) training.step(micro);
    training.engine->save_checkpoint(folder / "b");
    training.engine->wait_for_checkpoint();
    CHECK_NOTHROW(training.engine->load_checkpoint(folder / "b"));
  });
}

TEST_CASE("A save between backward() and step() is refused") {
  const TemporaryFolder folder;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 1, "bf16", communicator, settings_of({}));
    {
      const auto scope = training.engine->no_sync();
      training.engine->backward(training.model->loss(values({5, 61}, 1).to(at::kBFloat16)));
    }
    expect_throws([&] { training.engine->save_checkpoint(folder / "a"); }, "between backward() and step()",
                  "a save before the step");
  });
}

}  // namespace zerorun::testing
