// Tests stage 3 on the tiny GPT-2. With any limits, results have the same bits as at the other stages, and
// communication volume and memory stay within what the limits allow.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kBucket = 8000;  // elements; gives the tiny GPT-2 about 16 buckets

struct Limits {
  int64_t max_live = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  int64_t prefetch = 50'000'000;
  int64_t persistence = 0;
};

std::string config(int stage, const Limits& limits, int accumulation = 1) {
  std::string zero = R"({"stage": )" + std::to_string(stage);
  if (stage == 3) {
    zero += R"(, "stage3_max_live_parameters": )" + std::to_string(limits.max_live) +
            R"(, "stage3_max_reuse_distance": )" + std::to_string(limits.max_reuse_distance) +
            R"(, "stage3_prefetch_bucket_size": )" + std::to_string(limits.prefetch) +
            R"(, "stage3_param_persistence_threshold": )" + std::to_string(limits.persistence);
  }
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}}, "gradient_clipping": 1.0,)" +
         R"("zero_optimization": )" + zero + "}}";
}

RunOptions ranks(int world_size, int64_t steps = 4) {
  return {.world_size = world_size, .steps = steps, .bucket_numel = kBucket, .group_weight_decay = {}};
}

double parameters_of(const RunResult& run) {
  double total = 0;
  for (const auto& [name, values] : run.parameters) total += static_cast<double>(values.numel());
  return total;
}

}  // namespace

TEST_CASE("Stage 3 gives the bits of stages 0 to 2 without accumulation") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  const RunResult reference = train_tiny_gpt2(config(0, {}), ranks(world));
  check_same_bits(train_tiny_gpt2(config(2, {}), ranks(world)), reference);
  for (int64_t max_live : {int64_t{0}, int64_t{20'000}, int64_t{60'000}, int64_t{1'000'000'000}}) {
    for (int64_t prefetch : {int64_t{0}, int64_t{20'000}, int64_t{50'000'000}}) {
      CAPTURE(max_live, prefetch);
      check_same_bits(train_tiny_gpt2(config(3, {.max_live = max_live, .prefetch = prefetch}), ranks(world)),
                      reference);
    }
  }
  for (int64_t persistence : {int64_t{64}, int64_t{1000}, int64_t{100'000}}) {
    CAPTURE(persistence);
    check_same_bits(
        train_tiny_gpt2(config(3, {.max_live = 20'000, .persistence = persistence}), ranks(world)),
        reference);
  }
}

TEST_CASE("Stage 3 gives the bits of stage 2 with accumulation") {
  const int world = GENERATE(2, 3);
  CAPTURE(world);
  const RunResult reference = train_tiny_gpt2(config(2, {}, 3), ranks(world));
  for (int64_t max_live : {int64_t{0}, int64_t{30'000}, int64_t{1'000'000'000}}) {
    CAPTURE(max_live);
    check_same_bits(train_tiny_gpt2(config(3, {.max_live = max_live}, 3), ranks(world)), reference);
  }
}

TEST_CASE("Stage 3 sends as many elements as its limits promise") {
  const int world = GENERATE(2, 3, 4);
  const int accumulation = GENERATE(1, 3);
  const int64_t steps = 5;
  const auto micro_steps = static_cast<double>(steps * accumulation);
  CAPTURE(world, accumulation);
  auto volume = [&](const Limits& limits) {
    const RunResult run = train_tiny_gpt2(config(3, limits, accumulation), ranks(world, steps));
    const double unit = parameters_of(run) * (world - 1) / world * micro_steps;
    CHECK(run.reduce_scattered / unit == Approx(1).epsilon(0.02));
    CHECK(run.residency.departures == 0);
    return run.all_gathered / unit;
  };
  // The tolerance allows for padding: less than 16 elements per parameter and 16 x ranks per bucket. All
  // parameters together have 118,528 elements.
  CHECK(volume({}) == Approx(1).epsilon(0.02));
  for (int64_t prefetch : {0, 20'000, 50'000'000}) {
    CAPTURE(prefetch);
    // The engine releases the bucket whose next use is furthest ahead (Belady's rule). So some buckets stay
    // in memory from forward to backward, and each bucket is gathered at most twice per micro-step.
    CHECK(volume({.max_live = 35'000, .prefetch = prefetch}) <= 2.04);
    const double without_reuse = volume({.max_live = 60'000, .max_reuse_distance = 0, .prefetch = prefetch});
    CHECK(without_reuse == Approx(2).epsilon(0.06));
    CHECK(without_reuse <= 2.04);
  }
}

TEST_CASE("Stage 3 keeps the bytes of model states within 5 percent of the ZeRO formula") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  const RunResult run = train_tiny_gpt2(config(3, {.max_live = 30'000}, 2), ranks(world));
  CHECK(static_cast<double>(run.bytes.model_states()) ==
        Approx(16 * parameters_of(run) / world).epsilon(0.05));
  CHECK(run.formula_bytes == Approx(16 * parameters_of(run) / world));
}

TEST_CASE("The trace is followed: nothing is allocated for parameters after the first iterations") {
  const int accumulation = GENERATE(1, 3);
  for (int64_t max_live : {int64_t{0}, int64_t{35'000}, int64_t{1'000'000'000}}) {
    const Limits limits{.max_live = max_live, .prefetch = 20'000};
    const RunResult two = train_tiny_gpt2(config(3, limits, accumulation), ranks(2, 2));
    const RunResult six = train_tiny_gpt2(config(3, limits, accumulation), ranks(2, 6));
    CHECK(six.residency.unplanned_allocations == two.residency.unplanned_allocations);
    CHECK(six.residency.departures == 0);
    CHECK(six.residency.gathers > two.residency.gathers);
    CHECK(six.residency.peak_resident_bytes == two.residency.peak_resident_bytes);
  }
}

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
    auto require = [](bool holds, const char* what) {
      if (!holds) throw std::runtime_error(what);
    };
    auto infer = [&](torch::nn::Sequential& model) {
      torch::NoGradGuard no_grad;
      return model->forward(x);
    };
    for (int round = 0; round < 3; ++round) {
      engine.eval();
      reference.eval();
      for (int pass = 0; pass < 3; ++pass) {
        require(torch::equal(infer(model), infer(whole)), "inference differs");
      }
      {
        torch::InferenceMode inference;
        require(torch::equal(model->forward(x), whole->forward(x)), "inference mode differs");
      }
      engine.train();
      reference.train();
      engine.backward(model->forward(x).square().sum());
      engine.step();
      reference.backward(whole->forward(x).square().sum());
      reference.step();
    }
    engine.eval();
    require(torch::equal(infer(model), infer(whole)), "the last inference differs");
    if (max_live > 0) return;
    // By now inference follows its own trace, and gathers each of the 12 buckets once per forward.
    const int64_t before = engine.residency().gathers;
    infer(model);
    infer(model);
    require(engine.residency().gathers == before + 24, "inference gathers each bucket once a pass");
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
    auto require = [](bool holds, const char* what) {
      if (!holds) throw std::runtime_error(what);
    };
    // Each layer has 64 x 64 weights and 64 biases, and each of the two ranks has half of them.
    require(engine.bytes_by_category().buffers == (64 * 64 + 64) * 4 / 2, "frozen bytes");
    require(reference.bytes_by_category().buffers == (64 * 64 + 64) * 4, "whole frozen bytes");
    require(engine.bytes_by_category().parameters == (64 * 64 + 64) * 4 / 2, "trained bytes");
    const at::Tensor before = model[0]->parameters()[0].clone();
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = values({4, 64}, 10 + step).requires_grad_();
      const at::Tensor y = x.detach().clone().requires_grad_();
      engine.backward(model->forward(x).square().sum());
      engine.step();
      reference.backward(whole->forward(y).square().sum());
      reference.step();
      require(torch::equal(x.grad(), y.grad()), "gradients through the frozen part");
    }
    require(torch::equal(model[0]->parameters()[0], before), "the frozen part has moved");
    require(torch::equal(model[1]->parameters()[0], whole[1]->parameters()[0]), "the trained part differs");
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
