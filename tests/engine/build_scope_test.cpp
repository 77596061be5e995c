// Tests that a model built under a DeferredInit trains to the same bits as a plainly built model, at every
// stage.
#include <catch2/catch.hpp>
#include <mutex>

#include "samples/gpt2/model.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr samples::Gpt2Options kOptions{.layers = 2, .hidden = 32, .heads = 2, .vocab = 64, .positions = 16};

std::vector<at::Tensor> train(bool deferred, int stage, int world_size) {
  std::vector<at::Tensor> result;
  run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
    samples::Gpt2 model = nullptr;
    {
      static std::mutex construction;  // all threads share LibTorch's generator
      std::lock_guard lock(construction);
      torch::manual_seed(7 + communicator->rank());  // the engine broadcasts rank 0's values
      std::optional<DeferredInit> scope;
      if (deferred) scope.emplace();
      model = samples::Gpt2(kOptions);
    }
    Engine engine = make_engine(*model, sgd_config(stage), communicator);
    for (int step = 0; step < 3; ++step) {
      at::Tensor tokens = (torch::arange(2 * 16).view({2, 16}) * (step + 3 + communicator->rank())) % 64;
      engine.backward(model->loss(tokens));
      engine.step();
    }
    for (const at::Tensor& parameter : model->parameters()) {
      at::Tensor values = parameter.detach().clone();
      if (communicator->rank() == 0) result.push_back(values);
    }
  });
  return result;
}

}  // namespace

TEST_CASE("A model built under DeferredInit trains with the bits of one built plainly") {
  const int world = GENERATE(1, 3);
  const std::vector<at::Tensor> plain = train(false, 0, world);
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(world, stage);
    const std::vector<at::Tensor> built = train(true, stage, world);
    REQUIRE(built.size() == plain.size());
    for (size_t i = 0; i < built.size(); ++i) CHECK(torch::equal(built[i], plain[i]));
  }
}

TEST_CASE("Buffers and frozen parameters built under DeferredInit have their values") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    struct Parts : torch::nn::Module {
      Parts() {
        norm = register_module("norm", torch::nn::BatchNorm1d(4));
        frozen = register_parameter("frozen", torch::randn({4, 4}), /*requires_grad=*/false);
        mask = register_buffer("mask", torch::tril(torch::ones({4, 4}, torch::kBool)));
      }
      torch::nn::BatchNorm1d norm{nullptr};
      at::Tensor frozen, mask;
    };
    torch::manual_seed(3);
    Parts plain;
    torch::manual_seed(3);
    std::optional<DeferredInit> scope(std::in_place);
    Parts built;
    CHECK_THROWS_WITH(make_engine(built, sgd_config(2), communicator), Contains("DeferredInit"));
    scope.reset();
    Engine engine = make_engine(built, sgd_config(3), communicator);
    CHECK(torch::equal(built.frozen, plain.frozen));
    CHECK(torch::equal(built.mask, plain.mask));
    CHECK(torch::equal(built.norm->running_var, plain.norm->running_var));
    CHECK(torch::equal(built.norm->weight, plain.norm->weight));
  });
}

TEST_CASE("Values that cannot be computed any more are refused with their tensor's name") {
  const bool is_buffer = GENERATE(false, true);
  const int ranks = GENERATE(1, 2);  // only rank 0 computes values, and all ranks throw
  CHECK_NOTHROW(run_ranks(
      ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        torch::nn::Linear model(2, 2);
        const at::Tensor source = torch::ones({4});
        {
          const DeferredInit scope;
          const at::Tensor copied = torch::empty({4}).copy_(source);
          is_buffer ? model->register_buffer("copied", copied) : model->register_parameter("copied", copied);
        }
        source.add_(1);
        const std::string name = is_buffer ? "copied" : "parameter copied";
        expect_throws([&] { make_engine(*model, sgd_config(1), communicator); },
                      "the values of " + name + ": operator aten::copy_", "initialize()");
      },
      std::chrono::seconds(5)));
}

TEST_CASE("Deferred parameters that share memory are refused like others") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Module model;
    {
      DeferredInit scope;
      at::Tensor whole = torch::randn({6});
      model.register_parameter("whole", whole);
      model.register_parameter("part", whole.detach().slice(0, 2, 4));
    }
    CHECK_THROWS_WITH(make_engine(model, sgd_config(2), communicator),
                      Contains("whole and part share memory"));
  });
}

}  // namespace zerorun::testing
