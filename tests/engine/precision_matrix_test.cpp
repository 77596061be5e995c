// Tests on the tiny GPT-2, in every precision, that all stages give the same bits, also if a step is skipped.
// Model states must take the bytes that ZeRO's memory formulas give (docs/architecture.md).
#include <catch2/catch.hpp>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

const std::string kFp32;
const std::string kBf16 = R"("bf16": {"enabled": true},)";
// With these settings the loss scale doubles after the third step. The fourth step overflows and halves it.
const std::string kFp16 =
    R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},)";

struct Setting {
  std::string precision;
  double clipping = 0;
  int accumulation = 1;
};

RunResult train(const Setting& setting, int stage, int ranks, int64_t steps = 5) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
      std::to_string(setting.accumulation) +
      R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}},
      "gradient_clipping": )" +
      std::to_string(setting.clipping) + ", " + setting.precision +
      R"("zero_optimization": {"overlap_comm": true, "stage": )" + std::to_string(stage) +
      R"(, "stage3_param_persistence_threshold": 100}})";
  return train_tiny_gpt2(config, {.world_size = ranks,
                                  .steps = steps,
                                  .bucket_numel = {},
                                  .group_weight_decay = {},
                                  .inject_inf_steps = {3}});
}

}  // namespace

TEST_CASE("Without accumulation all stages give the same bits in every precision") {
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  const double clipping = GENERATE(0.0, 1.0);
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(precision, clipping, ranks);
  const Setting setting{.precision = precision, .clipping = clipping};
  const RunResult reference = train(setting, 0, ranks);
  CHECK(reference.skipped == std::vector<int64_t>{0, 0, 0, 1, 1});
  if (precision == kFp16) CHECK(reference.loss_scales == std::vector<double>{4096, 4096, 8192, 4096, 4096});
  for (int stage : {1, 2, 3}) {
    CAPTURE(stage);
    check_same_bits(train(setting, stage, ranks), reference);
  }
}

TEST_CASE("With accumulation stages 0 and 1 and stages 2 and 3 give the same bits in every precision") {
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  const double clipping = GENERATE(0.0, 1.0);
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(precision, clipping, ranks);
  const Setting setting{.precision = precision, .clipping = clipping, .accumulation = 4};
  const RunResult stage0 = train(setting, 0, ranks);
  const RunResult stage2 = train(setting, 2, ranks);
  check_same_bits(train(setting, 1, ranks), stage0);
  check_same_bits(train(setting, 3, ranks), stage2);
  CHECK(largest_relative_loss_difference(stage2, stage0) <= (precision == kFp32 ? 1e-6 : 3e-4));
}

TEST_CASE("Model states in 16 bits take the bytes of the ZeRO formula within 5 percent") {
  const std::string precision = GENERATE(kBf16, kFp16);
  const bool narrow = GENERATE(false, true);  // whether gradients are accumulated in 16 bits
  const int accumulation = GENERATE(1, 2);
  const int ranks = GENERATE(1, 2, 3);
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(precision, narrow, accumulation, ranks, stage);
  const std::string type = precision == kBf16 ? "bf16" : "fp16";
  const std::string types = narrow ? R"("data_types": {"grad_accum_dtype": ")" + type + R"("},)" : "";
  const RunResult run =
      train({.precision = precision + types, .accumulation = accumulation}, stage, ranks, 2);
  double parameters = 0;
  for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
  // Bytes per parameter: 2 for its value, `gradient` for its gradient, 12 for master weight and moments.
  // Gradients are in the accumulation dtype at stages 2 and 3, and at all stages if they are accumulated.
  // Otherwise they are in 16 bits.
  const double n = ranks;
  const double gradient = !narrow && (stage >= 2 || accumulation > 1) ? 4 : 2;
  const double per_parameter = stage == 0   ? 14 + gradient
                               : stage == 1 ? 2 + gradient + 12 / n
                               : stage == 2 ? 2 + (12 + gradient) / n
                                            : (14 + gradient) / n;
  CHECK(static_cast<double>(run.bytes.model_states()) == Approx(per_parameter * parameters).epsilon(0.05));
  CHECK(run.formula_bytes == Approx(per_parameter * parameters).epsilon(stage == 3 ? 0.02 : 1e-6));
  CHECK(static_cast<double>(run.bytes.master) == Approx(4 * parameters / (stage == 0 ? 1 : n)).epsilon(0.05));
}

}  // namespace zerorun::testing
