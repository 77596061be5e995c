// Tests training with bfloat16 weights and optimizer states instead of fp32 ones
// (bf16_master_weights_and_grads, bf16_optimizer_states, zerorun.stochastic_rounding), and with optimizer
// states in 8 bits (optimizer_states_in_8_bits). same_bits_test and the tests of meshes try them on all other
// axes.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/moment_codes.h"
#include "engine/parameter_states.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/engine/state_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

const std::string kStates = R"("bf16_master_weights_and_grads": true, "bf16_optimizer_states": true)";
const StateCase kAdamW{.name = "AdamW",
                       .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})"};

std::string config_with(const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "bf16": {"enabled": true, )" +
         kStates + "}, " + more + "}";
}

// One parameter whose gradient is 1 everywhere.
struct SlopeImpl : torch::nn::Module {
  explicit SlopeImpl(int64_t numel) { weight = register_parameter("weight", at::ones({numel})); }
  at::Tensor loss() { return weight.sum(at::kFloat); }
  at::Tensor weight;
};
TORCH_MODULE(Slope);

// The mean of a weight that starts at 1 after 64 steps of SGD by 2^-12 each.
double mean_after_small_steps(const std::string& more) {
  Slope model(1 << 16);
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Engine engine = make_engine(
        *model, config_with(R"("optimizer": {"type": "SGD", "params": {"lr": 0.000244140625}})" + more),
        communicator);
    for (int step = 0; step < 64; ++step) {
      engine.backward(model->loss());
      engine.step();
    }
  });
  return model->weight.detach().to(at::kDouble).mean().item<double>();
}

// A run to step 3 that saves, or one that loads what it has saved; both then train to step 6.
void run(const std::string& precision, int stage, int ranks, const std::filesystem::path& folder, bool loads,
         CollectedState& at_the_checkpoint, CollectedState& at_the_end) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(kAdamW, stage, precision, communicator);
    for (int step = 0; step < (loads ? 1 : 3); ++step) training.step(step);
    if (loads) {
      training.engine->load_checkpoint(folder);
    } else {
      training.engine->save_checkpoint(folder);
    }
    at_the_checkpoint.add(training);
    for (int step = 3; step < 6; ++step) training.step(step);
    at_the_end.add(training);
  });
}

}  // namespace

TEST_CASE("An update of bfloat16 states is AdamW's formula in float32, rounded once") {
  CHECK_NOTHROW(run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    Slope model(1000);
    at::Tensor value = values({1000}, 5).to(at::kBFloat16);
    {
      const torch::NoGradGuard no_grad;
      model->weight.copy_(value);
    }
    Engine engine = make_engine(
        *model, config_with(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})"),
        communicator);
    ParameterStates states(engine);
    at::Tensor first = at::zeros({1000}, at::kBFloat16), second = at::zeros({1000}, at::kBFloat16);
    for (int step = 1; step <= 5; ++step) {
      const at::Tensor target = values({1000}, 100 + static_cast<uint64_t>(step));
      engine.backward((model->weight.to(at::kFloat) * target).sum());
      engine.step();
      const at::Tensor gradient = target.to(at::kBFloat16).to(at::kFloat);
      const at::Tensor exact_first = first.to(at::kFloat) * 0.9F + gradient * (1 - 0.9);
      const at::Tensor exact_second = second.to(at::kFloat) * 0.999F + gradient * gradient * (1 - 0.999);
      const double step_size = 0.01 / (1 - std::pow(0.9, step));
      const at::Tensor root = exact_second.sqrt() / std::sqrt(1 - std::pow(0.999, step)) + 1e-8;
      const at::Tensor wide = value.to(at::kFloat);
      const at::Tensor exact = wide - (wide * (0.01 * 0.1) + exact_first / root * step_size);
      first = states.read(model->weight, "exp_avg").to(at::kBFloat16);
      second = states.read(model->weight, "exp_avg_sq").to(at::kBFloat16);
      value = model->weight.detach().clone();
      expect(value.scalar_type() == at::kBFloat16, "a bfloat16 weight");
      // The engine's constants are float32, so a result at the middle of two numbers may round the other way.
      const auto expect_rounded = [&](const at::Tensor& found, const at::Tensor& wanted, const char* what) {
        const at::Tensor differs = found.ne(wanted.to(at::kBFloat16));
        expect(differs.sum().item<int64_t>() <= 5, what);
        const at::Tensor error = (found.to(at::kFloat) - wanted).abs();
        expect(error.le(wanted.abs() * (0x1p-8 * 1.001)).all().item<bool>(), what);
      };
      expect_rounded(first, exact_first, "exp_avg");
      expect_rounded(second, exact_second, "exp_avg_sq");
      expect_rounded(value, exact, "value");
    }
    const BytesByCategory bytes = engine.bytes_by_category();
    expect(bytes.master == 0, "no master weights");
    expect(bytes.moments == 2 * bytes.parameters, "two moments of the parameters' size");
  }));
}

TEST_CASE("Steps below the weights' precision are lost to nearest and count on average at random") {
  CHECK(mean_after_small_steps("") == 1.0);
  const double exact = 1 - 64 * 0x1p-12;
  // A step of 2^-12 below 1 is rounded to one of two numbers 2^-8 apart: a standard deviation of at most
  // sqrt(64) * 2^-9, divided by 2^8 as the mean of 2^16 weights.
  const double deviation = 8 * 0x1p-9 / 256;
  const double one = mean_after_small_steps(R"(, "zerorun": {"stochastic_rounding": true})");
  const double other =
      mean_after_small_steps(R"(, "zerorun": {"stochastic_rounding": true, "rounding_seed": 1})");
  CHECK(std::abs(one - exact) < 5 * deviation);
  CHECK(std::abs(other - exact) < 5 * deviation);
  CHECK(one != other);
  CHECK(one == mean_after_small_steps(R"(, "zerorun": {"stochastic_rounding": true})"));
}

TEST_CASE("A checkpoint of bfloat16 states continues with the same bits, and other precisions read it") {
  for (const int stage : {0, 1, 3}) {
    const TemporaryFolder folder;
    CollectedState saved, end;
    run("bf16 states", stage, 2, folder / "a", false, saved, end);
    for (const int reader_stage : {0, 2, 3}) {
      CAPTURE(stage, reader_stage);
      CollectedState read, reader_end;
      run("bf16 states", reader_stage, 2, folder / "a", true, read, reader_end);
      check_same(saved.whole(), read.whole());
      check_same(end.whole(), reader_end.whole());
    }
    // fp32 holds each bfloat16 number.
    for (const std::string precision : {"bf16", "fp32"}) {
      CAPTURE(precision);
      CollectedState read, reader_end;
      run(precision, stage, 3, folder / "a", true, read, reader_end);
      check_same(saved.whole(), read.whole(), false);
    }
  }
}

TEST_CASE("bfloat16 states read a checkpoint of fp32 states, rounded to nearest") {
  const TemporaryFolder folder;
  CollectedState saved, end, read, reader_end;
  run("bf16", 2, 2, folder / "a", false, saved, end);
  run("bf16 states", 3, 3, folder / "a", true, read, reader_end);
  CollectedState::Whole rounded = saved.whole();
  for (auto& [name, state] : rounded) state = state.to(at::kBFloat16).to(at::kFloat);
  check_same(rounded, read.whole(), false);
}

namespace {

// As elements in 8 bits.
at::Tensor coded(const at::Tensor& values, bool has_signs) {
  const at::Tensor codes = at::empty({values.numel()}, at::kByte);
  const at::Tensor scales = at::empty({coded_blocks(values.numel())});
  at::Tensor result = at::empty({values.numel()});
  encode(values.const_data_ptr<float>(), values.numel(), has_signs, codes.mutable_data_ptr<uint8_t>(),
         scales.mutable_data_ptr<float>());
  decode(codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(), values.numel(), has_signs,
         result.mutable_data_ptr<float>());
  return result;
}

CollectedState::Whole with_coded_moments(CollectedState::Whole whole) {
  for (auto& [name, state] : whole) {
    if (!name.starts_with("exact")) state = coded(state, !name.starts_with("exp_avg_sq"));
  }
  return whole;
}

}  // namespace

TEST_CASE("An update of states in 8 bits is AdamW's on decoded moments; programs read and write numbers") {
  for (const int stage : {0, 1, 3}) {
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Slope model(1000);
      Engine engine = make_engine(*model,
                                  R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
          "zero_optimization": {"stage": )" +
                                      std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
          "zerorun": {"optimizer_states_in_8_bits": true}})",
                                  communicator);
      ParameterStates states(engine);
      at::Tensor first = at::zeros({1000}), second = at::zeros({1000});
      for (int step = 1; step <= 4; ++step) {
        const at::Tensor gradient = values({1000}, 100 + static_cast<uint64_t>(step));
        engine.backward((model->weight * gradient).sum());
        engine.step();
        first = coded(first * 0.9F + gradient * static_cast<float>(1 - 0.9), true);
        second = coded(second * 0.999F + gradient * gradient * static_cast<float>(1 - 0.999), false);
        const auto expect_near = [&](const std::string& name, const at::Tensor& wanted) {
          // The formula here may round the other way, and so choose the neighbour of a code.
          const at::Tensor found = states.read(model->weight, name);
          expect(found.ne(wanted).sum().item<int64_t>() <= 5, name);
          expect(at::allclose(found, wanted, 0.2, 1e-6), name + " is near");
        };
        expect_near("exp_avg", first);
        expect_near("exp_avg_sq", second);
        first = states.read(model->weight, "exp_avg");
        second = states.read(model->weight, "exp_avg_sq");
      }
      const at::Tensor given = values({1000}, 7);
      states.write(model->weight, "exp_avg", given);
      expect(at::equal(states.read(model->weight, "exp_avg"), coded(given, true)), "what was written");
      expect(at::equal(states.read(model->weight, "exp_avg_sq"), second), "the other moment");
      const int64_t moments = engine.bytes_by_category().moments;
      const int64_t kept = stage == 0 ? 1024 : 512;
      expect(moments == 2 * (kept + kept / kCodedBlock * 4), "a byte for an element, 4 for a block");
    }));
  }
}

TEST_CASE("A checkpoint of states in 8 bits continues with the same bits, and holds numbers") {
  for (const int stage : {0, 1, 3}) {
    const TemporaryFolder folder;
    CollectedState saved, end;
    run("8 bits", stage, 2, folder / "a", false, saved, end);
    for (const int reader_stage : {0, 2, 3}) {
      CAPTURE(stage, reader_stage);
      CollectedState read, reader_end;
      run("8 bits", reader_stage, 2, folder / "a", true, read, reader_end);
      check_same(saved.whole(), read.whole());
      check_same(end.whole(), reader_end.whole());
    }
    for (const std::string precision : {"8 bits", "fp32"}) {
      CAPTURE(precision);
      CollectedState read, reader_end;
      run(precision, stage, 3, folder / "a", true, read, reader_end);
      check_same(saved.whole(), read.whole());
    }
  }
}

TEST_CASE("States in 8 bits read a checkpoint of fp32 states") {
  const TemporaryFolder folder;
  CollectedState saved, end, read, reader_end;
  run("fp32", 2, 2, folder / "a", false, saved, end);
  run("8 bits", 3, 3, folder / "a", true, read, reader_end);
  check_same(with_coded_moments(saved.whole()), read.whole());
}

TEST_CASE("bfloat16 states are refused with the program's own optimizer") {
  CHECK_NOTHROW(run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    Slope model(4);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    InitializeOptions options;
    options.optimizer = &optimizer;
    expect_throws([&] { make_engine(*model, config_with(R"("steps_per_print": 1)"), communicator, options); },
                  "name an optimizer in the config instead", "bfloat16 states with a program's optimizer");
  }));
}

}  // namespace zerorun::testing
