// Tests zero_quantized_weights: parameters are gathered in 8 bits, and slices stay exact.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/gathered_parameters.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "zero/quantized_values.h"

namespace zerorun::testing {
namespace {

constexpr int kQuantizedRanks = 2;
constexpr int64_t kBlock = 256;

// What a value becomes, computed without tensors: `block` has the values of its block.
float rounded_in(const float* block, int64_t count, float value) {
  float largest = 0;
  for (int64_t index = 0; index < count; ++index) largest = std::max(largest, std::abs(block[index]));
  const float scale = largest / 127;
  return scale == 0 ? 0 : std::nearbyint(value / scale) * scale;
}

at::Tensor rounded_slice(const at::Tensor& slice) {
  at::Tensor result = at::empty_like(slice);
  const float* from = slice.const_data_ptr<float>();
  for (int64_t begin = 0; begin < slice.numel(); begin += kBlock) {
    const int64_t count = std::min(kBlock, slice.numel() - begin);
    for (int64_t index = begin; index < begin + count; ++index)
      result.mutable_data_ptr<float>()[index] = rounded_in(from + begin, count, from[index]);
  }
  return result;
}

StateCase quantized_case(bool quantizes, int near = 1) {
  StateCase how = all_state_cases().front();
  how.zero = R"(, "stage3_max_reuse_distance": 0, "zero_hpz_partition_size": )" + std::to_string(near) +
             R"(, "zero_quantized_weights": )" + (quantizes ? "true" : "false");
  return how;
}

void run_alone(int ranks, const RankBody& body) {
  run_ranks(ranks, body, std::chrono::seconds(60), /*shares_memory=*/false);
}

// The first parameter's values, exact: a scope gathers without rounding.
at::Tensor exact_values(StateTraining& training, const at::Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  const GatheredParameters scope(*training.engine, {parameter});
  return parameter.clone();
}

}  // namespace

TEST_CASE("Values in 8 bits are off by at most half of their block's scale") {
  const int64_t numel = GENERATE(1, 255, 256, 257, 1000, 4096);
  CAPTURE(numel);
  at::Tensor values = testing::values({numel}, 3);
  values *= at::linspace(-6, 3, numel).exp();  // blocks with other scales
  if (numel > 600) values.narrow(0, 256, 256).zero_();
  at::Tensor decoded = at::empty_like(values);
  const at::Tensor bytes = quantized(values);
  CHECK(bytes.numel() == (numel + kBlock - 1) / kBlock * (kBlock + 4));
  dequantize(bytes, decoded);
  CHECK(at::allclose(decoded, rounded_slice(values), 1e-6, 0));
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    const auto block = values.narrow(0, begin, count);
    const double half = block.abs().max().item<double>() / 127 / 2;
    const double error = (decoded.narrow(0, begin, count) - block).abs().max().item<double>();
    CHECK(error <= half * (1 + 1e-5));
  }
}

TEST_CASE("A value that is not finite does not become one that is") {
  const float bad = GENERATE(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN());
  at::Tensor values = at::ones({600});
  values[300] = bad;
  at::Tensor decoded = at::empty_like(values);
  dequantize(quantized(values), decoded);
  CHECK_FALSE(std::isfinite(decoded[300].item<float>()));
  CHECK(at::equal(decoded.narrow(0, 0, 256), at::ones({256})));
}

TEST_CASE("Operators see rounded values, the same on all ranks; slices, scopes and updates have exact ones") {
  run_alone(kQuantizedRanks, [](std::shared_ptr<Communicator> world) {
    const torch::NoGradGuard no_grad;
    StateTraining training(quantized_case(true), 3, "fp32", world);
    const at::Tensor first = training.model->first;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor exact = exact_values(training, first);
      const at::Tensor seen = first.clone();
      const EngineState& state = *training.state;
      // `first` is alone in a bucket, whose slices are rounded block by block.
      const BucketLayout& layout = state.store.layout(state.buckets.bucket_of(0));
      expect(layout.parameters.size() == 1, "one parameter in the bucket");
      at::Tensor expected = at::zeros({layout.numel});
      expected.narrow(0, 0, exact.numel()).copy_(exact.view({-1}));
      for (int rank = 0; rank < kQuantizedRanks; ++rank) {
        const at::Tensor slice = expected.narrow(0, rank * layout.slice_numel, layout.slice_numel);
        slice.copy_(rounded_slice(slice.clone()));
      }
      expect(at::allclose(seen.view({-1}), expected.narrow(0, 0, exact.numel()), 1e-6, 0), "rounded values");
      expect(!at::equal(seen, exact), "rounding changes them");
      if (step == 1) break;
      first.mul_(0.5);  // of the exact values
      expect_same(exact_values(training, first), exact * 0.5, "a write by an operator");
      {
        const at::AutoGradMode with_grad(true);
        training.step(step);
      }
    }
    world->barrier("the end")->wait();
  });
}

TEST_CASE("Gathers in 8 bits send the formula's bytes, and training goes as without them") {
  std::vector<float> losses[2];
  double sent[2] = {0, 0}, expected = 0;
  for (const bool quantizes : {false, true}) {
    run_alone(kQuantizedRanks, [&](std::shared_ptr<Communicator> world) {
      StateTraining training(quantized_case(quantizes), 3, "fp32", world);
      const bool is_first = world->rank() == 0;
      for (int step = 0; step < 40; ++step) {
        world->volume().reset();
        const float loss = training.step(step);
        if (is_first) losses[quantizes].push_back(loss);
      }
      if (!is_first) return;
      sent[quantizes] = world->volume().elements(Collective::all_gather);
      // Backward does not read `first`, and begins with `fixed`, which is there from forward's end: these two
      // are gathered once in a step, the others twice.
      for (int bucket = 0; quantizes && bucket < training.state->store.count(); ++bucket) {
        const BucketLayout& layout = training.state->store.layout(bucket);
        const bool is_once = layout.parameters.front() == 0 || layout.group == kFrozen;
        const int64_t bytes = (layout.slice_numel + kBlock - 1) / kBlock * (kBlock + 4);
        const int64_t each = layout.partitioned ? bytes * (is_once ? 1 : 2) : layout.slice_numel;
        expected += static_cast<double>(each * (kQuantizedRanks - 1));
      }
    });
  }
  CHECK(sent[1] == expected);
  CHECK(sent[0] > 0);
  for (size_t step = 0; step < losses[0].size(); ++step) {
    CAPTURE(step, losses[0][step], losses[1][step]);
    CHECK(std::abs(losses[0][step] - losses[1][step]) < 0.05F * losses[0][step]);
  }
  CHECK(losses[0] != losses[1]);
}

TEST_CASE("Second copies keep values that were gathered in 8 bits: the bits of gathers among all ranks") {
  const std::string precision = GENERATE("fp32", "bf16", "fp16");
  CAPTURE(precision);
  std::vector<float> losses[2];
  CollectedState states[2];
  for (const int near : {1, 2}) {
    run_alone(4, [&](std::shared_ptr<Communicator> world) {
      StateTraining training(quantized_case(true, near), 3, precision, world);
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {  // exact values replace the rounded ones for a moment
          const torch::NoGradGuard no_grad;
          const GatheredParameters scope(*training.engine, {training.model->last}, 0);
          if (world->rank() == 0) training.model->last.mul_(0.5);
        }
        const float loss = training.step(step);
        if (world->rank() == 0) losses[near - 1].push_back(loss);
      }
      states[near - 1].add(training);
      world->barrier("the end")->wait();
    });
  }
  CHECK(losses[0] == losses[1]);
  check_same(states[0].whole(), states[1].whole());
}

}  // namespace zerorun::testing
