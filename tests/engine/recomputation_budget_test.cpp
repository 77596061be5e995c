// Tests of the blocks that a budget keeps: the choice from costs, and the bytes that they hold in a training.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "activations/recomputation.h"
#include "engine/engine.h"
#include "tests/engine/net.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

// The peak by walking through a forward and a backward, event by event.
int64_t simulated_peak(const std::vector<MeasuredBlock>& blocks, int64_t in_flight) {
  int64_t held = 0, peak = 0;
  const auto take = [&](int64_t bytes) {
    held += bytes;
    peak = std::max(peak, held);
  };
  for (int64_t micro = 0; micro < in_flight; ++micro) {
    for (const MeasuredBlock& block : blocks)
      take(block.cost.inputs + (block.kept ? block.cost.activations : 0));
  }
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (!block->kept) take(block->cost.activations);
    held -= block->cost.activations + block->cost.inputs;
  }
  return peak;
}

}  // namespace

TEST_CASE("A budget keeps blocks as long as the peak stays within it, the cheapest bytes first") {
  std::mt19937 random(3);
  const auto draw = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<MeasuredBlock> blocks(1 + static_cast<size_t>(draw(11)));
    for (MeasuredBlock& block : blocks)
      block.cost = {.inputs = draw(20), .activations = draw(100), .seconds = static_cast<double>(draw(50))};
    const int64_t in_flight = 1 + draw(3);
    const int64_t least = peak_of(blocks, in_flight);
    const int64_t budget = draw(in_flight * 1500);
    keep_within(budget, in_flight, blocks);
    REQUIRE(peak_of(blocks, in_flight) == simulated_peak(blocks, in_flight));
    if (budget < least) {
      REQUIRE(std::ranges::none_of(blocks, &MeasuredBlock::kept));
      continue;
    }
    REQUIRE(peak_of(blocks, in_flight) <= budget);
    for (MeasuredBlock& block : blocks) {
      if (block.kept) continue;
      block.kept = true;
      REQUIRE(peak_of(blocks, in_flight) > budget);
      block.kept = false;
    }
  }
}

TEST_CASE("Blocks hold what the budget allows, and no block less than it allows") {
  constexpr int64_t kBlocks = 6, kHidden = 32, kRows = 8, kLength = 32;
  // A block's input, and what it keeps besides: the inputs of gelu() and of the second layer.
  constexpr int64_t kInput = kRows * kLength * kHidden * 4, kKept = 8 * kInput;
  for (int setting = 0; setting < 20; ++setting) {
    const int64_t budget = kBlocks * kInput + kKept + setting * (kBlocks * kKept) / 19;
    CAPTURE(setting, budget);
    const int ranks = 1 + setting % 2, stage = setting % 4;
    run_ranks(ranks, [&](auto communicator) {
      BlockModel model(kBlocks, kHidden);
      const std::string config = R"({"train_micro_batch_size_per_gpu": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "zero_optimization": {"stage": )" +
                                 std::to_string(stage) + R"(}, "zerorun": {"recompute": {"budget": ")" +
                                 std::to_string(budget) + "\"}}}";
      Engine engine = make_engine(model, config, communicator);
      at::Generator generator = at::detail::createCPUGenerator(4);
      const at::Tensor tokens = at::randint(BlockModel::kVocab, {kRows, kLength}, generator, at::kLong);
      int64_t held = 0;
      for (int step = 0; step < 3; ++step) {
        const AllocatedBytes bytes;
        at::Tensor x = model.embedding(tokens);
        const int64_t before = bytes.now() - kInput;
        x = model.run_blocks(x);
        held = bytes.now() - before - kInput;  // without the output of the last block
        engine.backward(model.loss_of(x, tokens));
        engine.step();
        expect(step > 0 || held <= kBlocks * kInput * 1.03, "at first all blocks are recomputed");
      }
      expect(held <= budget * 1.03, "held " + std::to_string(held));
      // What is recomputed last needs room too, unless everything is kept.
      const bool keeps_all = held > kBlocks * (kInput + kKept) * 0.97;
      expect(keeps_all || held + 2 * kKept > budget * 0.97, "held only " + std::to_string(held));
      expect(setting < 19 || keeps_all, "everything fits");
    });
  }
}

TEST_CASE("The log says what a budget keeps, and that a budget is too small") {
  const auto logged = [](const std::string& budget) {
    StderrCapture capture;
    run_ranks(2, [&](auto communicator) {
      BlockModel model(2);
      Engine engine = make_engine(model,
                                  R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
                                      "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                                      "activation_checkpointing": {"profile": true},
                                      "zerorun": {"recompute": {"budget": ")" +
                                      budget + "\"}}}",
                                  communicator);
      engine.backward(model.loss(at::arange(6).view({1, 6})));
      engine.step();
    });
    return capture.text();
  };
  CHECK_THAT(logged("1M"),
             Catch::Contains("recomputation within 1.0 MiB: keeps the activations of 2 of 2 blocks") &&
                 Catch::Contains("block0") && Catch::Contains("step 1: recomputation of 2 blocks: "));
  CHECK_THAT(logged("1K"), Catch::Contains("keeps the activations of 0 of 2 blocks") &&
                               Catch::Contains("the budget is too small even with all blocks recomputed"));
}

}  // namespace zerorun::testing
