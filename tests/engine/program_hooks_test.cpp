// Gradients that a program sets, and hooks of a program: those that throw, that replace the engine's, and
// that call the engine.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <memory>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/program_changes_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using torch::optim::SGD;

}  // namespace

TEST_CASE("A gradient that the program sets is refused, and one of a refused backward is not kept") {
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    auto plain = mlp();
    SGD plain_sgd(plain->parameters(), 0.1);
    train(plain, plain_sgd, 0, 1);
    const auto expected = copies_of(plain);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      auto model = mlp();
      Engine engine = make_engine(*model, sgd_config(stage), communicator);
      engine.offload_states();
      expect_throws([&] { loss_of(model, 5).backward(); }, "call reload_states() first", "refused backward");
      ParameterStates states(engine);
      expect_throws([&] { states.read(model->parameters()[0], "momentum_buffer"); }, "ParameterStates::read",
                    "a read of a state that is away");
      expect_throws(
          [&] {
            states.write(model->parameters()[0], "momentum_buffer", torch::zeros({7, 5}));
          },
          "ParameterStates::write(): the optimizer's states have been moved", "a write of one");
      engine.reload_states();
      engine.zero_grad();
      at::Tensor parameter = model->parameters()[2];
      loss_of(model, 0).backward();
      parameter.mutable_grad() = torch::ones(parameter.sizes());
      expect_throws([&] { engine.step(); }, "the program has set grad() of parameter 2.weight", "set");
      parameter.mutable_grad().reset();
      engine.step();
      const GatheredParameters whole(engine, model->parameters());
      check_close(*model, expected);
    }));
  }
}

TEST_CASE("A hook of the program that throws leaves no gradient behind") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    struct Throwing : torch::autograd::PostAccumulateGradHook {
      void operator()(const at::Tensor&) override {
        if (throws) throw std::runtime_error("a hook");
      }
      bool throws = true;
    };
    auto model = mlp();
    const at::Tensor last = model->parameters().back();
    auto hook = std::make_unique<Throwing>();
    Throwing* given = hook.get();
    torch::autograd::impl::set_post_acc_grad_hooks(last, std::move(hook));
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    CHECK_THROWS_WITH(loss_of(model, 0).backward(), Contains("a hook"));
    CHECK_FALSE(last.grad().defined());
    given->throws = false;
    loss_of(model, 0).backward();
    CHECK_NOTHROW(engine.step());
  });
}

TEST_CASE("A hook of the program that is set after initialize() runs, and its parameter is trained") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool by_engine = GENERATE(false, true);
  CAPTURE(stage, by_engine);
  auto plain = mlp();
  const auto tied_loss = [](torch::nn::Sequential& model, int step) {
    const at::Tensor last = model->parameters().back();
    return loss_of(model, step) + (last * last).sum();  // used twice
  };
  SGD plain_sgd(plain->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    plain_sgd.zero_grad();
    tied_loss(plain, step).backward();
    plain_sgd.step();
  }
  const auto expected = copies_of(plain);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    struct Count : torch::autograd::PostAccumulateGradHook {
      explicit Count(int& calls) : calls(&calls) {}
      void operator()(const at::Tensor& tensor) override { *calls += tensor.grad().defined(); }
      int* calls;
    };
    auto model = mlp();
    Engine engine = make_engine(*model, sgd_config(stage), communicator);
    int calls = 0;
    for (int step = 0; step < 3; ++step) {
      if (step < 2) {  // before the first backward, and again: each takes the place of the one before
        for (const at::Tensor& parameter : {model->parameters().front(), model->parameters().back()})
          torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Count>(calls));
      }
      const at::Tensor loss = tied_loss(model, step);
      by_engine ? engine.backward(loss) : loss.backward();
      engine.step();
    }
    expect(calls == 6, "the hooks were called " + std::to_string(calls) + " times");
    const GatheredParameters whole(engine, model->parameters());
    check_close(*model, expected);
  }));
}

TEST_CASE("Calls of the engine in a hook of a backward are refused, and the backward's gradients stay") {
  auto plain = mlp();
  SGD plain_sgd(plain->parameters(), 0.1);
  train(plain, plain_sgd, 0, 1);
  const auto expected = copies_of(plain);
  const bool by_engine = GENERATE(false, true);
  CHECK_NOTHROW(run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    int refused = 0;
    model->parameters().front().register_hook([&](const at::Tensor& gradient) {
      const std::string inside = "inside a backward pass";
      expect_throws([&] { engine.step(); }, inside, "step");
      expect_throws([&] { engine.backward(gradient.sum()); }, inside, "backward");
      expect_throws([&] { engine.zero_grad(); }, inside, "zero_grad");
      ++refused;
      return gradient;
    });
    if (by_engine) {
      engine.backward(loss_of(model, 0));
    } else {
      loss_of(model, 0).backward();
    }
    engine.step();
    expect(refused == 1, "the hook has run");
    check_close(*model, expected);
  }));
}

}  // namespace zerorun::testing
