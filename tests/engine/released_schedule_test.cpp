// Tests a schedule of the config that the program takes over.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

const std::string kAdam = R"("train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.5}})";
const std::string kWarmup = R"("scheduler": {"type": "WarmupLR", "params":
    {"warmup_max_lr": 1, "warmup_num_steps": 4, "warmup_type": "linear"}}, )";

}  // namespace

TEST_CASE("A schedule that the program has taken over moves only when the program says so") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, "{" + kWarmup + kAdam + "}", communicator);
    const auto lr_after_a_step = [&] {
      engine.backward(model->forward(sample(0, 0, 0), true).square().sum());
      engine.step();
      return engine.get_lr().front();
    };
    CHECK(lr_after_a_step() == 0);
    CHECK(lr_after_a_step() == 0.25);
    CHECK_THROWS_WITH(engine.set_scheduled(1), Contains("call release_schedule() first"));
    engine.release_schedule();
    CHECK(lr_after_a_step() == 0.25);
    engine.set_scheduled(4);
    CHECK(lr_after_a_step() == 0.75);
    engine.set_lr(0, 0.5);
    CHECK(lr_after_a_step() == 0.5);
    const TemporaryFolder folder;
    engine.save_checkpoint(folder / "saved");
    engine.set_lr(0, 0.25);
    engine.load_checkpoint(folder / "saved");
    CHECK(engine.get_lr().front() == 0.5);
    Engine without = make_engine(*model, "{" + kAdam + "}", communicator);
    CHECK_THROWS_WITH(without.release_schedule(), Contains("without a schedule of the config"));
  });
}

}  // namespace zerorun::testing
