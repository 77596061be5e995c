// Gradients that the program drops or sets: where the ranks do so at different places, and what the other
// calls of the engine make of it.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <memory>

#include "base/error.h"
#include "engine/parameter_states.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

InitializeOptions marked() {
  InitializeOptions options;
  options.marks_gradients = true;
  return options;
}

at::Tensor loss_on(Net& model, int step, int micro, int rank) {
  return model->forward(sample(step, micro, rank), true).square().mean();
}

// Trained and frozen layers alternate, so a backward uses parameters before and between its first gradients.
// Rank 0 also trains `aux`, whose gradient comes first, and which stays in memory.
struct Alternating : torch::nn::Module {
  Alternating() {
    for (int index = 0; index < 7; ++index) {
      const auto name = "layer" + std::to_string(index);
      layers.push_back(
          register_module(name, torch::nn::Linear(torch::nn::LinearOptions(64, 64).bias(false))));
      layers.back()->weight.requires_grad_(index < 2 || index == 4);
    }
    aux = register_parameter("aux", torch::ones({1}));
    fill(*this, 3);
  }
  at::Tensor loss(int step, int rank) {
    at::Tensor x = values({4, 64}, static_cast<uint64_t>(10 * step + rank));
    for (torch::nn::Linear& layer : layers) x = torch::tanh(layer->forward(x));
    at::Tensor loss = x.square().mean();
    return rank == 0 ? loss + aux.sum() * 1e-3 : loss;
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor aux;
};

}  // namespace

TEST_CASE("Ranks that drop gradients equally often, but at other micro-steps, get an error") {
  const int stage = GENERATE(0, 1, 2, 3);
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, 3), communicator, marked());
    const int rank = communicator->rank();
    for (int micro = 0; micro < 2; ++micro) {
      engine.backward(loss_on(model, 7, micro, rank));
      engine.step();
      if (micro == rank) engine.zero_grad();
    }
    expect_throws([&] { engine.save_checkpoint(folder / "checkpoints"); },
                  "in micro-step 2 before its last 1",
                  "save_checkpoint() of gradients that begin at different micro-steps");
    engine.backward(loss_on(model, 7, 2, rank));
    expect_throws([&] { engine.step(); }, "or at other micro-steps", "step()");
    for (int micro = 0; micro < 3; ++micro) {
      engine.backward(loss_on(model, 0, micro, rank));
      engine.step();
    }
    check_close(*model, plain_sgd(2, 3, 1, [](Net& net, int step, int micro, int of_rank) {
      return loss_on(net, step, micro, of_rank);
    }));
  }));
}

TEST_CASE(
    "Ranks that drop gradients after other backwards of a micro-step, or in another one, get an error") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool same_micro_step = GENERATE(false, true);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, 3), communicator);
    const int rank = communicator->rank();
    const auto backward = [&](int times) {
      for (int time = 0; time < times; ++time) {
        const auto scope = engine.no_sync();
        engine.backward(loss_on(model, 7, 0, rank));
      }
    };
    if (same_micro_step) {  // three backwards on both ranks
      backward(1 + rank);
      engine.zero_grad();
      backward(2 - rank);
      engine.step();
    } else {  // three too; two of the window's first ones are dropped on rank 0, one on rank 1
      backward(2 - rank);
      if (rank == 0) engine.step();
      engine.zero_grad();
      backward(1);
      engine.step();
      if (rank == 1) backward(1);
      if (rank == 1) engine.step();
    }
    while (!engine.is_gradient_accumulation_boundary()) {
      backward(1);
      engine.step();
    }
    engine.backward(loss_on(model, 7, 0, rank));
    expect_throws([&] { engine.step(); }, "or at other micro-steps", "step()");
  }));
}

TEST_CASE("Ranks with other numbers of backwards may drop gradients at the same micro-step") {
  const int stage = GENERATE(0, 1);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, 2), communicator);
    const int rank = communicator->rank();
    engine.backward(loss_on(model, 7, 0, rank));
    if (rank == 1) engine.backward(loss_on(model, 7, 1, rank));
    engine.zero_grad();
    engine.backward(loss_on(model, 0, 0, rank));
    engine.step();
    engine.zero_grad();
    for (int time = 0; time < 2 + rank; ++time) engine.backward(loss_on(model, 7, 2, rank));
    engine.step();
    expect(engine.global_steps() == 1, "a step");
  }));
}

TEST_CASE("Under fp16 each backward needs its own loss scale") {
  const int stage = GENERATE(0, 2);
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    std::string config = sgd_config(stage, 8);
    config.insert(1, R"("fp16": {"enabled": true, "initial_scale_power": 4}, )");
    Engine engine = make_engine(*model, config, communicator);
    const auto loss = [&] {
      return model->forward(sample(0, 0, 0).to(at::kHalf), true).to(at::kFloat).sum();
    };
    const auto check_unscaled = [&] {
      CHECK_THROWS_WITH(loss().backward(), Contains("without the loss scale"));
    };
    SECTION("a backward that ended") {
      engine.scale(loss()).backward();
      check_unscaled();
    }
    SECTION("a backward that was dropped") {
      engine.scale(loss()).backward();
      engine.zero_grad();
      check_unscaled();
    }
    SECTION("a backward that threw") {
      const auto fail = [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on purpose"); };
      at::Tensor fails = loss();
      const at::Tensor from = GENERATE(false, true) ? fails : model->first->weight;
      const unsigned hook = from.register_hook(fail);
      CHECK_THROWS_WITH(engine.scale(fails).backward(), Contains("on purpose"));
      from.remove_hook(hook);
      check_unscaled();
    }
    SECTION("a scaled loss without a backward") {
      engine.scale(loss());
      check_unscaled();
    }
    SECTION("an unscaled backward is no start of a scaled one") {
      const at::Tensor scaled = engine.scale(loss());
      const at::Tensor other = engine.scale(loss());
      engine.zero_grad();
      scaled.backward({}, /*keep_graph=*/true);
      check_unscaled();
      scaled.backward();
      other.backward();
      (engine.scale(loss()) / 2 + engine.scale(loss())).backward();
      check_unscaled();
    }
    engine.scale(loss()).backward();
    CHECK_NOTHROW(engine.step());
  });
}

TEST_CASE("Gradients dropped by marks leave the order of gathers and reductions as it is") {
  CHECK_NOTHROW(run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        Alternating model;
        std::string config = sgd_config(3);
        config.insert(config.find("\"stage\""), R"("stage3_param_persistence_threshold": 10, )");
        InitializeOptions options = marked();
        options.bucket_numel = 64 * 64;
        Engine engine = make_engine(model, config, communicator, options);
        const int rank = communicator->rank();
        for (int step = 0; step < 4; ++step) {
          model.loss(step, rank).backward();
          engine.step();
        }
        for (int step = 4; step < 7; ++step) {
          model.loss(step, rank).backward();
          model.zero_grad();
          model.loss(step + 10, rank).backward();
          engine.step();
        }
      },
      std::chrono::seconds(60), /*shares_memory=*/false));
}

TEST_CASE("Calls between steps take gradients that marks say are dropped as dropped") {
  const int stage = GENERATE(0, 2, 3);
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    std::string config = sgd_config(stage);
    config.insert(config.find("\"lr\""), R"("momentum": 0.9, )");
    Engine engine = make_engine(*model, config, communicator, marked());
    const at::Tensor& weight = model->last->weight;
    engine.backward(loss_on(model, 0, 0, 0));
    engine.step();
    engine.backward(loss_on(model, 1, 0, 0));
    CHECK_THROWS_WITH(ParameterStates(engine).read(weight, "momentum_buffer"),
                      Contains("ParameterStates::read() between backward() and step()"));
    model->zero_grad();
    CHECK(ParameterStates(engine).read(weight, "momentum_buffer").sizes() == weight.sizes());
    engine.backward(loss_on(model, 1, 0, 0));
    model->zero_grad();
    CHECK_NOTHROW(engine.save_16bit_model(folder / "model", "model.safetensors"));
    engine.backward(loss_on(model, 1, 0, 0));
    model->zero_grad();
    CHECK_NOTHROW(engine.offload_states());
  });
}

TEST_CASE("After a refused grad() the call that the message names works") {
  const int stage = GENERATE(0, 1, 2, 3);
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage), communicator, marked());
    const at::Tensor bias = model->last->bias;
    engine.backward(loss_on(model, 0, 0, 0));
    bias.mutable_grad() = torch::ones_like(bias);
    CHECK_THROWS_WITH(engine.step(), Contains("has set grad() of parameter last.bias"));
    ParameterStates(engine).write_gradient(bias, torch::ones_like(bias));
    const at::Tensor before = ParameterStates(engine).read_gradient(model->first->weight);
    CHECK(before.abs().sum().item<double>() > 0);
    CHECK(ParameterStates(engine).read_gradient(bias).equal(torch::ones_like(bias)));
    CHECK_NOTHROW(engine.step());
  });
}

TEST_CASE("A backward that is refused is not the one that was declared the last") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    std::string config = sgd_config(1);
    config.insert(1, R"("fp16": {"enabled": true}, )");
    Engine engine = make_engine(*model, config, communicator);
    const auto loss = [&] {
      return model->forward(sample(0, 0, 0).to(at::kHalf), true).to(at::kFloat).sum();
    };
    engine.set_gradient_accumulation_boundary(true);
    CHECK_THROWS_WITH(loss().backward(), Contains("without the loss scale"));
    CHECK_NOTHROW(engine.scale(loss()).backward());
    CHECK_NOTHROW(engine.step());
  });
}

}  // namespace zerorun::testing
