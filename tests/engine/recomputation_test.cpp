// Tests of recomputation: the bits of a run without it, on every axis, and layers of a Sequential.
#include <ATen/autocast_mode.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "activations/recomputable.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

const std::vector<std::string> kPrecisions = {"", R"(, "bf16": {"enabled": true})",
                                              R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"};

}  // namespace

TEST_CASE("Recomputation changes no bit, at any stage, in any precision, with and without accumulation") {
  struct Way {
    std::string how;
    std::vector<int> extra;  // forwards of each block beside each forward, 0 or 1
    int halves;              // recomputations of inner blocks in a micro-step
  };
  const std::vector<Way> ways = {
      {R"("every": 1)", {1, 1, 1, 1}, 4},
      {R"("every": 3)", {1, 0, 0, 1}, 2},
      {R"("patterns": ["block1", "block2"])", {0, 1, 1, 0}, 2},
      // An inner block of block1 runs in forward, in the recomputation of block1, and in its own.
      {R"("patterns": ["block1", "*.half"])", {0, 1, 0, 0}, 5}};
  for (const auto [way, stage, precision, accumulates, ranks, plain] :
       settings(static_cast<int>(ways.size()), 4, 3, 2, 3, 2)) {
    const Way& chosen = ways[static_cast<size_t>(way)];
    CAPTURE(chosen.how, stage, precision, accumulates, ranks, plain);
    const int accumulation = 1 + accumulates, micro_steps = kBlockSteps * accumulation;
    const std::string& more = kPrecisions[static_cast<size_t>(precision)];
    CHECK_NOTHROW(run_ranks(1 + ranks, [&, &plain = plain, &stage = stage](auto communicator) {
      const BlockRun kept = train_blocks(block_config(stage, more, accumulation), communicator, 0, plain);
      const BlockRun run = train_blocks(block_config(stage, more + recomputing(chosen.how), accumulation),
                                        communicator, 0, plain);
      expect_same_bits(run, kept);
      for (size_t block = 0; block < 4; ++block)
        expect(run.forwards[block] == micro_steps * (1 + chosen.extra[block]), "forwards of a block");
      expect(run.of_halves == micro_steps * (4 + chosen.halves), "forwards of inner blocks");
    }));
  }
}

TEST_CASE("Recomputation draws the same random numbers again") {
  for (const auto [stage, precision, plain] : settings(4, 3, 2)) {
    CAPTURE(stage, precision, plain);
    const std::string& more = kPrecisions[static_cast<size_t>(precision)];
    run_ranks(1, [&, &plain = plain, &stage = stage](auto communicator) {
      const BlockRun kept = train_blocks(block_config(stage, more), communicator, 0.3, plain);
      const at::Tensor after = at::rand({4});
      const BlockRun run =
          train_blocks(block_config(stage, more + recomputing(R"("every": 1)")), communicator, 0.3, plain);
      expect_same_bits(run, kept);
      expect_same(at::rand({4}), after, "random numbers after training");
      const BlockRun dry = train_blocks(block_config(stage, more), communicator, 0, plain);
      expect(!at::equal(dry.losses[0], kept.losses[0]), "dropout has an effect");
    });
  }
}

TEST_CASE("Recomputation under autocast casts as the forward did, though backward runs outside of it") {
  const std::string autocast = R"(, "torch_autocast": {"enabled": true})";
  for (const auto [stage, ranks, plain] : settings(4, 2, 2)) {
    CAPTURE(stage, ranks, plain);
    CHECK_NOTHROW(run_ranks(1 + ranks, [&, &plain = plain, &stage = stage](auto communicator) {
      const BlockRun kept = train_blocks(block_config(stage, autocast), communicator, 0, plain);
      const BlockRun run =
          train_blocks(block_config(stage, autocast + recomputing(R"("every": 1)")), communicator, 0, plain);
      expect_same_bits(run, kept);
      const BlockRun exact = train_blocks(block_config(stage, ""), communicator, 0, plain);
      expect(!at::equal(exact.losses[0], kept.losses[0]), "autocast has an effect");
    }));
  }
}

TEST_CASE("torch_autocast has the bits of plain LibTorch under autocast") {
  std::vector<at::Tensor> losses;
  BlockModel plain(4);
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < kBlockSteps; ++step) {
    optimizer.zero_grad();
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    losses.push_back(plain.loss(block_tokens(step, 0, 0)));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    losses.back().backward();
    optimizer.step();
  }
  for (const std::string& recomputes :
       {std::string(), std::string(R"("zerorun": {"recompute": {"every": 1}}, )")}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage, recomputes);
      run_ranks(1, [&](auto communicator) {
        BlockModel model(4);
        torch::optim::SGD own(model.parameters(), 0.1);
        InitializeOptions options;
        options.optimizer = &own;
        std::string config = no_optimizer_config(stage);
        config.insert(1, R"("torch_autocast": {"enabled": true}, )" + recomputes);
        Engine engine = make_engine(model, config, communicator, options);
        for (int step = 0; step < kBlockSteps; ++step) {
          const at::Tensor loss = [&] {
            const AutocastScope autocast = engine.autocast();
            return model.loss(block_tokens(step, 0, 0));
          }();
          expect_same(loss.detach(), losses[static_cast<size_t>(step)].detach(), "loss");
          engine.backward(loss);
          engine.step();
        }
        GatheredParameters whole(engine, model.parameters());
        expect_same(copies_of(model), copies_of(plain), "parameters");
      });
    }
  }
}

TEST_CASE("Stage 3 gathers parameters for a recomputation and its backward once") {
  // Of the 5 layers, less than two may be in memory at a time, so that each is gathered twice in a
  // micro-step.
  const std::string limits = R"(, "stage3_max_live_parameters": 4000, "stage3_prefetch_bucket_size": 0)";
  run_ranks(
      2,
      [&](auto communicator) {
        const BlockRun kept = train_blocks(block_config(3, "", 1, limits), communicator);
        const BlockRun run =
            train_blocks(block_config(3, recomputing(R"("every": 1)"), 1, limits), communicator);
        expect_same_bits(run, kept);
        BlockModel model(4, 16);
        double numel = 0;
        for (const at::Tensor& parameter : model.parameters())
          numel += static_cast<double>(parameter.numel());
        expect(kept.gathered > 1.5 * numel / 2, "without recomputation most parameters are gathered twice");
        expect(run.gathered < kept.gathered * 1.05, "gathered " + std::to_string(run.gathered) +
                                                        ", without recomputation " +
                                                        std::to_string(kept.gathered));
      },
      std::chrono::seconds(60), false);
}

TEST_CASE("activation_checkpointing recomputes all marked blocks") {
  run_ranks(1, [](auto communicator) {
    const BlockRun run =
        train_blocks(block_config(1, R"(, "activation_checkpointing": {"profile": false})"), communicator);
    expect(run.forwards == std::vector<int>(4, 2 * kBlockSteps), "forwards");
  });
}

namespace {

// Layers of a Sequential, of which some take or return no tensor alone.
struct Pair : torch::nn::Module {
  at::Tensor factor = register_parameter("factor", at::ones({4}));
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x * factor, x.detach()}; }
};
struct Joined : torch::nn::Module {
  Joined() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const std::tuple<at::Tensor, at::Tensor>& both) {
    return linear(std::get<0>(both)) + std::get<1>(both);
  }
  torch::nn::Linear linear;
};

int calls_of_counted = 0;
struct Counted : torch::nn::Cloneable<Counted> {
  Counted() { Counted::reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    ++calls_of_counted;
    return at::tanh(linear(x));
  }
  torch::nn::Linear linear{nullptr};
};

std::vector<at::Tensor> train_sequential(const std::string& config, torch::nn::Sequential& model,
                                         std::shared_ptr<Communicator> communicator) {
  fill(*model, 3);
  Engine engine = make_engine(*model, config, std::move(communicator));
  for (int step = 0; step < 3; ++step) {
    engine.backward(model->forward(values({3, 4}, step)).square().sum());
    engine.step();
  }
  GatheredParameters whole(engine, model->parameters());
  return copies_of(*model);
}

}  // namespace

TEST_CASE("Layers of a Sequential need no mark, and the Sequential is as before when the engine is gone") {
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    run_ranks(1, [&](auto communicator) {
      const auto make = [] { return torch::nn::Sequential(Counted(), torch::nn::Linear(4, 4), Counted()); };
      torch::nn::Sequential plain = make(), model = make();
      const auto expected = train_sequential(block_config(stage, ""), plain, communicator);
      calls_of_counted = 0;
      const auto found =
          train_sequential(block_config(stage, recomputing(R"("every": 1)")), model, communicator);
      expect_same(found, expected, "parameters");
      expect(calls_of_counted == 3 * 2 * 2, "forwards of layers");
      expect(model->at<Counted>(0).named_parameters().size() == 2, "at() of a layer");
      expect(model->children().size() == 3 && model->ptr(2) == model->children()[2], "layers");
    });
  }
}

TEST_CASE("A layer of a Sequential that returns no tensor is refused if it is to be recomputed") {
  run_ranks(1, [&](auto communicator) {
    torch::nn::Sequential model{Counted(), Pair(), Joined()};
    expect_throws(
        [&] { train_sequential(block_config(0, recomputing(R"("every": 1)")), model, communicator); },
        "layer 1 of a torch::nn::Sequential returns something else than a tensor",
        "a layer that returns two tensors");
    torch::nn::Sequential other{Counted(), Pair(), Joined()}, plain{Counted(), Pair(), Joined()};
    const auto found =
        train_sequential(block_config(0, recomputing(R"("patterns": ["0", "2"])")), other, communicator);
    expect_same(found, train_sequential(block_config(0, ""), plain, communicator), "parameters");
  });
}

TEST_CASE("A Sequential with several engines, names, clones and layers that are added keeps its own layers") {
  run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    struct Holder : torch::nn::Module {
      torch::nn::Sequential layers = register_module(
          "layers", torch::nn::Sequential(Counted(), torch::nn::ReLU(torch::nn::ReLUOptions(true))));
      torch::nn::Sequential again = register_module("again", layers);
    };
    Holder model;
    fill(model, 3);
    const std::string config = block_config(0, recomputing(R"("every": 1)"));
    {
      Engine first = make_engine(model, config, communicator);
      std::shared_ptr<torch::nn::Module> clone = model.layers->clone();
      expect(clone->as<torch::nn::Sequential>()->at<Counted>(0).named_parameters().size() == 2,
             "a clone's layer");
      first = make_engine(model, config, communicator);
      calls_of_counted = 0;
      first.backward(model.layers->forward(values({3, 4}, 1)).square().sum());
      first.step();
      expect(calls_of_counted == 2, "the second engine recomputes");
      for (int layer = 0; layer < 20; ++layer) model.layers->push_back(Counted());
    }
    expect(model.layers->at<Counted>(0).named_parameters().size() == 2, "the first layer");
    expect(model.layers->at<torch::nn::ReLU::ContainedType>(1).options.inplace(), "the second layer");
  });
}

}  // namespace zerorun::testing
