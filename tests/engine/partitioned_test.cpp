// Tests inference on partitioned parameters, and frozen parameters, at stage 3.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
TEST_CASE("Inference on partitioned parameters between steps uses the trained values and has its own trace") {
  const int64_t max_live = GENERATE(int64_t{0}, int64_t{2'500}, int64_t{1'000'000});
  CAPTURE(max_live);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto make_model = [] {
      torch::nn::Sequential model;
      for (int layer = 0; layer < 6; ++layer) {
        model->push_back(torch::nn::Linear(32, 32));
        model->push_back(torch::nn::Tanh());
      }
      fill(*model, 5);
      return model;
    };
    torch::nn::Sequential model = make_model();
    torch::nn::Sequential whole = make_model();
    InitializeOptions options;
    options.bucket_numel = 1;
    auto engine_of = [&](torch::nn::Sequential& trained, int stage) {
      return make_engine(*trained,
                         R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
              "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": )" +
                             std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0,
              "stage3_max_live_parameters": )" +
                             std::to_string(max_live) + "}}",
                         communicator, options);
    };
    Engine engine = engine_of(model, 3);
    Engine reference = engine_of(whole, 0);
    const at::Tensor x = values({3, 32}, 8);
    auto infer = [&](torch::nn::Sequential& model) {
      torch::NoGradGuard no_grad;
      return model->forward(x);
    };
    for (int round = 0; round < 3; ++round) {
      engine.eval();
      reference.eval();
      for (int pass = 0; pass < 3; ++pass) {
        expect(torch::equal(infer(model), infer(whole)), "inference differs");
      }
      {
        torch::InferenceMode inference;
        expect(torch::equal(model->forward(x), whole->forward(x)), "inference mode differs");
      }
      engine.train();
      reference.train();
      engine.backward(model->forward(x).square().sum());
      engine.step();
      reference.backward(whole->forward(x).square().sum());
      reference.step();
    }
    engine.eval();
    expect(torch::equal(infer(model), infer(whole)), "the last inference differs");
    if (max_live > 0) return;
    // By now inference follows its own trace, and gathers each of the 12 buckets once per forward.
    const int64_t before = engine.residency().gathers;
    infer(model);
    infer(model);
    expect(engine.residency().gathers == before + 24, "inference gathers each bucket once a pass");
  });
}

TEST_CASE("Frozen parameters are partitioned too, and stay as they were") {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto make_model = [] {
      torch::nn::Sequential model(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64));
      fill(*model, 5);
      for (at::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(false);
      return model;
    };
    torch::nn::Sequential model = make_model();
    torch::nn::Sequential whole = make_model();
    const std::string sgd = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD",
        "params": {"lr": 0.01}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )";
    Engine engine = make_engine(*model, sgd + "3}}", communicator);
    Engine reference = make_engine(*whole, sgd + "2}}", communicator);
    // Each layer has 64 x 64 weights and 64 biases, and each of the two ranks has half of them.
    expect(engine.bytes_by_category().buffers == (64 * 64 + 64) * 4 / 2, "frozen bytes");
    expect(reference.bytes_by_category().buffers == (64 * 64 + 64) * 4, "whole frozen bytes");
    expect(engine.bytes_by_category().parameters == (64 * 64 + 64) * 4 / 2, "trained bytes");
    const at::Tensor before = model[0]->parameters()[0].clone();
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = values({4, 64}, 10 + step).requires_grad_();
      const at::Tensor y = x.detach().clone().requires_grad_();
      engine.backward(model->forward(x).square().sum());
      engine.step();
      reference.backward(whole->forward(y).square().sum());
      reference.step();
      expect(torch::equal(x.grad(), y.grad()), "gradients through the frozen part");
    }
    expect(torch::equal(model[0]->parameters()[0], before), "the frozen part has moved");
    expect(torch::equal(model[1]->parameters()[0], whole[1]->parameters()[0]), "the trained part differs");
    model[0]->parameters()[0].requires_grad_(true);
    engine.backward(model->forward(values({4, 64}, 9)).sum());
    try {
      engine.step();
    } catch (const std::exception& error) {
      errors[communicator->rank()] = error.what();
    }
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Matchers::Contains("0.weight was unfrozen after initialize()"));
  }
}

}  // namespace zerorun::testing
