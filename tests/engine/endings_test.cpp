// Tests scopes, engines and calls of initialize() that end early, and the memory that evaluation and
// departures from the trace may hold.
#include <catch2/catch.hpp>

#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

constexpr int64_t kLayerNumel = 1024;  // elements; each parameter of layers() has this size

std::function<at::Tensor(int)> layers(Built& model) {
  std::vector<Linear> stack;
  for (int i = 0; i < 6; ++i) {
    stack.push_back(
        model.add("layer" + std::to_string(i), Linear(torch::nn::LinearOptions(32, 32).bias(false))));
  }
  return [stack](int iteration) mutable {
    at::Tensor x = values({2, 32}, 3);
    for (size_t i = 0; i < stack.size(); ++i) {
      x = stack[iteration % 3 == 1 ? stack.size() - 1 - i : i]->forward(x).tanh();
    }
    return x;
  };
}

}  // namespace

TEST_CASE("Raw access without a scope throws right after a use too, because its writes would be lost") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(layers);
    Engine engine =
        make_engine(*model, Partition{.max_live = 1 << 20, .bucket_numel = kLayerNumel}, communicator);
    model->run(0);
    at::Tensor weight = model->parameters()[5];
    expect_throws([&] { weight.data_ptr<float>()[0] = 42; }, kNotGathered, "data_ptr after a use");
    at::Tensor alias = torch::empty({0}).set_(weight.detach());
    expect_throws([&] { alias.fill_(3); }, kNotGathered, "an unmarked alias");
    GatheredParameters scope(engine, {weight});
    expect(weight.data_ptr<float>()[0] != 42, "a lost write was seen");
  });
}

TEST_CASE("Evaluation and departures keep the limits on memory") {
  const int64_t max_live = GENERATE(0, 2, 3, 6) * kLayerNumel;
  const int64_t prefetch = GENERATE(0, 1) * kLayerNumel;
  CAPTURE(max_live, prefetch);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(layers);
    Engine engine = make_engine(
        *model, Partition{.max_live = max_live, .prefetch = prefetch, .bucket_numel = kLayerNumel},
        communicator);
    const int64_t bound = (std::max(max_live, kLayerNumel) + prefetch) * 4;
    for (int i = 0; i < 8; ++i) {
      engine.backward(loss_of(model->run(i)));  // every third iteration uses another order of layers
      engine.step();
      model->eval();
      torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 3; ++pass) model->run(0);
      model->train();
      const int64_t peak = engine.residency().peak_resident_bytes;
      expect(peak <= bound, "held " + std::to_string(peak) + " bytes of " + std::to_string(bound));
    }
    expect(engine.residency().departures > 0, "no departure to test");
  }));
}

TEST_CASE("A scope still works after its engine has been destroyed") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build(layers);
    auto engine =
        std::make_optional(make_engine(*model, Partition{.bucket_numel = kLayerNumel}, communicator));
    at::Tensor weight = model->parameters()[0];
    {
      GatheredParameters scope(*engine, {weight}, 0);
      engine.reset();
      expect(weight.data_ptr<float>() != nullptr, "no data in the scope");
    }
    expect_throws([&] { weight.data_ptr(); }, "the engine", "after engine and scope");
    expect_throws([&] { weight.sum(); }, "the engine", "an operator after engine and scope");
  });
}

TEST_CASE("After a failed initialize() operators on the model throw an error, and nothing crashes") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Module model;
    at::Tensor outside = torch::ones({32, 32});
    at::Tensor good = model.register_parameter("good", torch::ones({32, 32}));
    at::Tensor bad;
    {
      DeferredInit scope;
      bad = model.register_parameter("bad", torch::empty({32, 32}));
      torch::NoGradGuard no_grad;
      bad.copy_(outside);
    }
    outside.add_(1);  // makes the values of `bad` impossible to compute
    // Buckets are filled from the last parameter to the first. All are filled before the ranks throw.
    model.register_parameter("last", torch::ones({32, 32}));
    CHECK_THROWS_AS(make_engine(model, Partition{.bucket_numel = kLayerNumel}, communicator), std::exception);
    for (const at::Tensor& parameter : {model.named_parameters()["last"], bad, good})
      expect_throws([&] { parameter.sum(); }, "engine", "an operator afterwards");
  });
}

TEST_CASE("Running statistics that are frozen parameters keep what batch_norm writes") {
  std::vector<at::Tensor> means;
  for (int stage : {2, 3}) {
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Module model;
      at::Tensor weight = model.register_parameter("weight", torch::ones({64}));
      at::Tensor bias = model.register_parameter("bias", torch::zeros({64}));
      at::Tensor mean = model.register_parameter("mean", torch::zeros({64}), false);
      at::Tensor variance = model.register_parameter("variance", torch::ones({64}), false);
      Engine engine = make_engine(model, Partition{.stage = stage, .bucket_numel = 64}, communicator);
      for (int i = 0; i < 3; ++i) {
        at::Tensor y = std::get<0>(
            at::native_batch_norm(values({8, 64}, 5 + i) + 1, weight, bias, mean, variance, true, 0.1, 1e-5));
        engine.backward(loss_of(y));
        engine.step();
      }
      means.push_back(mean.clone());
    });
  }
  CHECK(means[0].abs().sum().item<float>() > 1);
  CHECK(torch::equal(means[0], means[1]));
}

}  // namespace zerorun::testing
