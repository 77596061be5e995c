// Tests infinite and NaN gradients: every rank skips the step and keeps its state, and the log names the
// parameter and the rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string config_of(int stage, const std::string& precision, int accumulation = 1) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) + R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}},
             )" +
         precision + R"("zero_optimization": {"stage": )" + std::to_string(stage) +
         R"(, "stage3_param_persistence_threshold": 0}})";
}

// A loss in which `bias_factor` is added to the gradient of branch.bias.
at::Tensor loss_with(Net& model, int step, int rank, double bias_factor) {
  const at::Tensor x = sample(step, 0, rank).to(model->first->weight.scalar_type());
  return model->forward(x, true).to(at::kFloat).square().sum() +
         (model->branch->bias.to(at::kFloat) * bias_factor).sum();
}

at::Tensor good_loss(Net& model, int step, int rank) {
  return loss_with(model, step, rank, 0);
}

// A loss in which only the gradient of branch.bias is not finite.
at::Tensor bad_loss(Net& model, int step, int rank) {
  return loss_with(model, step, rank, kInfinity);
}

constexpr const char* kFp32 = "";
constexpr const char* kBf16 = R"("bf16": {"enabled": true}, )";
constexpr const char* kFp16 = R"("fp16": {"enabled": true, "loss_scale": 64}, )";
constexpr const char* kDynamic = R"("fp16": {"enabled": true, "initial_scale_power": 6, "hysteresis": 1}, )";

}  // namespace

TEST_CASE(
    "Infinite gradients on one rank: all ranks skip the step, the log names parameter and rank, and the step "
    "changes no state") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  CAPTURE(stage, precision);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model, untouched;
    Engine engine = make_engine(*model, config_of(stage, precision), communicator);
    Engine reference = make_engine(*untouched, config_of(stage, precision), communicator);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        const auto before = copies_of(*model);
        const std::vector<double> lr = engine.get_lr();
        engine.backward(rank == 1 ? bad_loss(model, step, rank) : good_loss(model, step, rank));
        engine.step();
        expect(!engine.was_step_applied() && engine.skipped_steps() == 1 && engine.global_steps() == 3,
               "the step counts as skipped");
        expect(engine.get_global_grad_norm() == kInfinity, "the norm");
        expect(engine.get_lr() == lr, "the schedule");
        expect_same(copies_of(*model), before, "behind the skipped step");
      }
      engine.backward(good_loss(model, step, rank));
      engine.step();
      expect(engine.was_step_applied(), "the steps around it");
      reference.backward(good_loss(untouched, step, rank));
      reference.step();
    }
    expect_same(copies_of(*model), copies_of(*untouched), "in the end");
  }));
  const std::string log = capture.text();
  CHECK_THAT(log, Contains("step 3 skipped: the gradient of parameter branch.bias on rank 1 is not finite"));
  CHECK(log.find("skipped: ") == log.rfind("skipped: "));
}

TEST_CASE("The log names the earliest gradient that is not finite, on the lowest such rank") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(stage, kBf16, 2), communicator);
    const int rank = communicator->rank();
    // On rank 0 all gradients of the second micro-step are infinite. On ranks 1 and 2 the gradient of
    // branch.bias is infinite in the first micro-step already.
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor loss =
          rank == 0 ? good_loss(model, 0, rank) * (micro == 1 ? kInfinity : 1) : bad_loss(model, 0, rank);
      engine.backward(loss);
      engine.step();
    }
  }));
  CHECK_THAT(capture.text(), Contains("parameter branch.bias on rank 1 is not finite"));
}

TEST_CASE(
    "A dynamic loss scale falls, and at its minimum training ends with an error that names the parameter") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(stage, kDynamic), communicator);
    const auto before = copies_of(*model);
    auto step = [&] {
      engine.backward(bad_loss(model, 0, communicator->rank()));
      engine.step();
    };
    for (const double scale : {32, 16, 8, 4, 2, 1}) {
      step();
      expect(engine.loss_scale() == scale, "the scale is " + std::to_string(engine.loss_scale()));
    }
    std::string message;
    try {
      step();
    } catch (const TrainingError& error) {
      message = error.what();
    }
    for (const char* part : {"step 7", "branch.bias on rank 0", "fp16.min_loss_scale 1"}) {
      expect(message.find(part) != std::string::npos, message);
    }
    expect_same(copies_of(*model), before, "in the end");
  }));
  CHECK_THAT(capture.text(), Contains("the loss scale goes from 64 to 32"));
}

TEST_CASE("If every gradient is finite but their sum is not, the log names the sum") {
  // Each micro-step adds 40,000: 20,000 times the loss scale of 4, divided by 2 micro-steps. The sum is kept
  // in fp16, whose largest value is 65,504.
  const std::string precision =
      R"("fp16": {"enabled": true, "loss_scale": 4}, "data_types": {"grad_accum_dtype": "fp16"}, )";
  const int stage = GENERATE(2, 3);
  CAPTURE(stage);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(stage, precision, 2), communicator);
    for (int micro = 0; micro < 2; ++micro) {
      engine.backward(loss_with(model, 0, 0, 20'000));
      engine.step();
    }
    expect(engine.skipped_steps() == 1, "the step is skipped");
  }));
  CHECK_THAT(
      capture.text(),
      Contains("the sum over ranks and micro-steps of the gradients of parameter branch.bias is not finite"));
}

TEST_CASE("The log says whether a gradient is infinite or only too large for the dtype in which it is sent") {
  const std::string precision = R"("communication_data_type": "fp16", )";
  const int stage = GENERATE(0, 1, 2, 3);
  const int accumulation = GENERATE(1, 2);
  CAPTURE(stage, accumulation);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(stage, precision, accumulation), communicator);
    for (int micro = 0; micro < accumulation; ++micro) {
      engine.backward(loss_with(model, 0, 0, communicator->rank() == 1 ? 1e6 : 1));
      engine.step();
    }
    expect(engine.skipped_steps() == 1, "the step is skipped");
  }));
  CHECK_THAT(capture.text(), Contains("the gradient of parameter branch.bias on rank 1 is too large for "
                                      "fp16, the dtype of gradients in collectives"));
}

TEST_CASE("A gradient norm beyond the range of float32 is reported and clipped like others") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = torch::nn::Linear(100, 1);
    const at::Tensor before = model->weight.detach().clone();
    Engine engine = make_engine(*model, sgd_config(stage, 1, /*clipping=*/1), communicator);
    engine.backward((model->weight * 1e38).sum() + 0 * model->bias.sum());
    engine.step();
    expect(engine.was_step_applied() && std::abs(engine.get_global_grad_norm() / 1e39 - 1) < 1e-6,
           "the norm");
    // Clipping leaves 100 equal gradients with norm 1, so each is 0.1; the learning rate is 0.1.
    expect(torch::allclose(model->weight.detach(), before - 0.01, 1e-6, 1e-6), "the update");
  }));
}

TEST_CASE("A loss scale beyond the range of float32 overflows and falls, and training continues") {
  const std::string precision =
      R"("fp16": {"enabled": true, "initial_scale_power": 127, "loss_scale_window": 1,
                                            "hysteresis": 1}, )";
  CHECK_NOTHROW(run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(2, precision), communicator);
    for (const double scale : {0x1p127, 0x1p128, 0x1p127}) {
      engine.backward(0 * good_loss(model, 0, 0));
      engine.step();
      expect(engine.loss_scale() == scale, "the scale is " + std::to_string(engine.loss_scale()));
    }
  }));
}

}  // namespace zerorun::testing
