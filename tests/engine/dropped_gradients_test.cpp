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

TEST_CASE("A dropped batch: zero_grad() beside plain LibTorch") {
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model, plain;
      Engine engine = make_engine(*model, sgd_config(stage), communicator);
      const int rank = communicator->rank();
      for (int step = 0; step < 6; ++step) {
        engine.zero_grad();
        at::Tensor loss = model->forward(sample(step, 0, rank), true).square().mean();
        loss.backward();
        if (step % 3 == 1) continue;
        engine.step();
      }
      check_close(*model, plain_sgd(2, 1, 4, [](Net& net, int step, int, int of_rank) {
        return net->forward(sample(step + (step + 1) / 2, 0, of_rank), true).square().mean();
      }));
    }));
  }
}

TEST_CASE("Gradients dropped between micro-steps leave the optimizer step where it is") {
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine(*model, sgd_config(stage, 2), communicator);
      const int rank = communicator->rank();
      const auto loss = [&](int step) { return model->forward(sample(step, 0, rank), true).square().mean(); };
      for (int step = 0; step < 4; ++step) {
        for (int micro = 0; micro < 2; ++micro) {
          engine.zero_grad();
          engine.backward(micro == 0 ? 100 * loss(step) : loss(step));
          engine.step();
        }
        expect(engine.global_steps() == step + 1, "a step after each two micro-steps");
      }
      check_close(*model, plain_sgd(2, 1, 4, [](Net& net, int step, int, int of_rank) {
        return net->forward(sample(step, 0, of_rank), true).square().mean() / 2;
      }));
    }));
  }
}

TEST_CASE("Ranks that drop gradients differently get an error, and may go on") {
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine(*model, sgd_config(stage, 2), communicator, marked());
      const int rank = communicator->rank();
      const auto loss = [&](int step) { return model->forward(sample(step, 0, rank), true).square().mean(); };
      engine.backward(loss(7));
      engine.step();
      if (rank == 1) model->zero_grad();
      engine.backward(loss(7));
      expect_throws([&] { engine.step(); }, "some ranks have dropped gradients", "step()");
      for (int micro = 0; micro < 4; ++micro) {
        engine.backward(loss(micro / 2));
        engine.step();
      }
      check_close(*model, plain_sgd(2, 1, 2, [](Net& net, int step, int, int of_rank) {
        return net->forward(sample(step, 0, of_rank), true).square().mean();
      }));
    }));
  }
}

TEST_CASE("What one rank alone does to marks is an error of saves and loads on all ranks") {
  const TemporaryFolder temporary;
  const auto folder = temporary / "checkpoints";
  for (const int stage : {0, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine(*model, sgd_config(stage, 2), communicator, marked());
      const int rank = communicator->rank();
      const auto micro_step = [&] {
        engine.backward(model->forward(sample(0, 0, rank), true).square().mean());
        engine.step();
      };
      micro_step();
      if (rank == 0) model->last->bias.mutable_grad().reset();
      for (int attempt = 0; attempt < 2; ++attempt) {
        expect_throws([&] { engine.save_checkpoint(folder); },
                      "rank 0: engine.save_checkpoint(): the program", "save_checkpoint()");
        expect_throws([&] { engine.load_checkpoint(folder); },
                      "rank 0: engine.load_checkpoint(): the program", "load_checkpoint()");
      }
      if (rank == 0) engine.zero_grad();
      expect_throws([&] { engine.save_checkpoint(folder); },
                    "gradients dropped (zero_grad()) in micro-step 2",
                    "save_checkpoint() of gradients that one rank has dropped");
      if (rank == 1) engine.zero_grad();
      engine.save_checkpoint(folder);
      engine.load_checkpoint(folder);
      micro_step();
      expect(engine.global_steps() == 1, "a step");
    }));
  }
}

// Between two backwards: what the program does to gradients, and whether the engine drops them.
TEST_CASE("Marks in grad() tell the engine which gradients the program drops or sets") {
  const int stage = GENERATE(0, 1, 2, 3);
  using Change = std::function<void(Net&)>;
  auto trained = [stage](bool starts_with_other, const Change& change) {
    std::vector<std::vector<at::Tensor>> found(2);
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      const int rank = communicator->rank();
      Engine engine = make_engine(*model, sgd_config(stage, 1, 1), communicator, marked());
      for (int step = 0; step < 2; ++step) {
        if (starts_with_other) engine.backward(model->forward(sample(9, step, rank), true).sum());
        change(model);
        model->forward(sample(step, 0, rank), true).square().mean().backward();
        engine.step();
        for (const at::Tensor& parameter : model->parameters())
          expect(!parameter.grad().defined(), "no mark is left after step()");
      }
      found[rank] = copies_of(*model);
    });
    return found[0];
  };
  const std::vector<at::Tensor> plain = trained(false, [](Net&) {});
  expect_same(trained(true, [](Net& model) { model->zero_grad(); }), plain, "zero_grad()");
  expect_same(trained(true, [](Net& model) { model->zero_grad(/*set_to_none=*/false); }), plain, "zeroed");
  expect_same(trained(true,
                      [](Net& model) {
                        for (const at::Tensor& parameter : model->parameters())
                          parameter.mutable_grad().reset();
                      }),
              plain, "emptied");
  CHECK_THROWS_WITH(trained(true, [](Net& model) { model->last->bias.mutable_grad().reset(); }),
                    Contains("dropped the gradient of parameter last.bias"));
  CHECK_THROWS_WITH(
      trained(true,
              [](Net& model) { model->last->bias.mutable_grad() = torch::ones_like(model->last->bias); }),
      Contains("has set grad() of parameter last.bias"));
  CHECK_THROWS_WITH(
      trained(true, [](Net& model) { torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0); }),
      Contains("gradient_clipping"));
}

}  // namespace zerorun::testing
