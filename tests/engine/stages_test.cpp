// Tests the guarantees of stages 0 to 2 on the tiny GPT-2: the same bits, and the communication volume and
// memory of the formulas.
#include <catch2/catch.hpp>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

std::string config(int stage, bool overlap, int accumulation = 1, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}}, "gradient_clipping": 1.0,)" +
         more + R"("zero_optimization": {"stage": )" + std::to_string(stage) + R"(, "overlap_comm": )" +
         (overlap ? "true" : "false") + "}}";
}

RunOptions ranks(int world_size, std::optional<int64_t> bucket_numel = {}, int64_t steps = 4) {
  return {.world_size = world_size, .steps = steps, .bucket_numel = bucket_numel, .group_weight_decay = {}};
}

}  // namespace

TEST_CASE("Stages 0 to 2 and overlap give the same bits without accumulation") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  const RunResult reference = train_tiny_gpt2(config(0, false), ranks(world));
  for (int stage : {0, 1, 2}) {
    for (bool overlap : {false, true}) {
      CAPTURE(stage, overlap);
      check_same_bits(train_tiny_gpt2(config(stage, overlap), ranks(world)), reference);
    }
  }
}

TEST_CASE("With accumulation stages 0 and 1 give the same bits, and stage 2 the same within rounding") {
  const int world = GENERATE(2, 3);
  CAPTURE(world);
  const RunResult stage0 = train_tiny_gpt2(config(0, true, 4), ranks(world));
  check_same_bits(train_tiny_gpt2(config(1, true, 4), ranks(world)), stage0);
  check_same_bits(train_tiny_gpt2(config(1, false, 4), ranks(world)), stage0);
  const RunResult stage2 = train_tiny_gpt2(config(2, true, 4), ranks(world));
  check_same_bits(train_tiny_gpt2(config(2, false, 4), ranks(world)), stage2);
  CHECK(largest_relative_loss_difference(stage2, stage0) <= 1e-6);
}

TEST_CASE("Bucket sizes change no bit") {
  const int world = GENERATE(2, 3);
  const int stage = GENERATE(0, 1, 2);
  CAPTURE(world, stage);
  const RunResult reference = train_tiny_gpt2(config(stage, true), ranks(world, 1'000'000));
  for (int64_t bucket_numel : {1, 5'000, 20'000}) {
    CAPTURE(bucket_numel);
    check_same_bits(train_tiny_gpt2(config(stage, true), ranks(world, bucket_numel)), reference);
  }
}

TEST_CASE("Runs repeat to the bit") {
  const RunResult first = train_tiny_gpt2(config(2, true, 2), ranks(3));
  check_same_bits(train_tiny_gpt2(config(2, true, 2), ranks(3)), first);
}

TEST_CASE("The number of elements sent is that of the formulas") {
  const int world = GENERATE(2, 3, 4);
  const int accumulation = GENERATE(1, 3);
  CAPTURE(world, accumulation);
  const int64_t steps = 3;
  for (int stage : {0, 1, 2}) {
    CAPTURE(stage);
    const RunResult run = train_tiny_gpt2(config(stage, true, accumulation), ranks(world, {}, steps));
    double parameters = 0;
    for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
    const double unit = parameters * (world - 1) / world * steps;
    const double reductions = stage == 2 ? accumulation : 1;
    // The tolerance allows for padding: less than 16 elements per parameter and 16 x ranks per bucket. All
    // parameters together have 118,528 elements.
    CHECK(run.reduce_scattered / unit == Approx(reductions).epsilon(0.02));
    CHECK(run.reduce_scattered >= reductions * unit);
    CHECK(run.all_gathered / unit == Approx(1).epsilon(0.02));
    CHECK(run.all_gathered >= unit);
  }
}

TEST_CASE("Model states take the bytes of the ZeRO formula within 5 percent") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  for (int stage : {0, 1, 2}) {
    CAPTURE(stage);
    const RunResult run = train_tiny_gpt2(config(stage, true, 2), ranks(world, {}, 3));
    double parameters = 0;
    for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
    const double n = world;
    const double per_parameter = stage == 0 ? 16 : stage == 1 ? 8 + 8 / n : 4 + 12 / n;
    CHECK(static_cast<double>(run.bytes.model_states()) == Approx(per_parameter * parameters).epsilon(0.05));
    CHECK(run.formula_bytes == Approx(per_parameter * parameters));
    CHECK(run.bytes.master == 0);
    if (stage != 2) continue;
    // The whole gradients of a bucket are freed once they are reduced. So at most two buckets are being
    // filled and two reduced at a time. The largest buckets here are single matrices of 16,384 elements.
    CHECK(static_cast<double>(run.bytes.gradients) == Approx(4 * parameters / n).epsilon(0.05));
    CHECK(run.bytes.buckets <= 4 * (16384 + 16 * world) * 4);
  }
}

TEST_CASE("Averaging before or after the sum agrees within rounding") {
  const RunResult plain = train_tiny_gpt2(config(2, true), ranks(3));
  const std::string prescaled = R"("prescale_gradients": true,)";
  const std::string predivided = R"("gradient_predivide_factor": 3.0,)";
  for (const std::string& more : {prescaled, predivided}) {
    CAPTURE(more);
    const RunResult run = train_tiny_gpt2(config(2, true, 1, more), ranks(3));
    CHECK(largest_relative_loss_difference(run, plain) <= 1e-6);
    CHECK(run.grad_norms.back() == Approx(plain.grad_norms.back()).epsilon(1e-5));
  }
}

}  // namespace zerorun::testing
