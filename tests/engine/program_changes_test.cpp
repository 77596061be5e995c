// What programs do to an optimizer, to gradients and to an engine outside of the engine's own functions: it
// has the effect that it has in plain LibTorch, or is refused by name.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "engine/zero_redundancy_optimizer.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/program_changes_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Both have the same effect on SGD's first momentum buffer: what was written before the first step stays.
std::vector<at::Tensor> plain_sgd_with_momentum(double dampening, double written, int steps) {
  auto model = mlp();
  std::vector<at::Tensor> momenta;
  for (const at::Tensor& parameter : model->parameters())
    momenta.push_back(torch::full_like(parameter, written));
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    loss_of(model, step).backward();
    const torch::NoGradGuard no_grad;
    size_t index = 0;
    for (at::Tensor& parameter : model->parameters()) {
      momenta[index].mul_(0.9).add_(parameter.grad(), step == 0 ? 1 : 1 - dampening);
      parameter.sub_(momenta[index++], 0.1);
    }
  }
  return copies_of(model);
}

}  // namespace

TEST_CASE("torch::load() of an optimizer's states reaches training and checkpoints") {
  const TemporaryFolder folder;
  auto plain = mlp();
  torch::optim::Adam plain_adam(plain->parameters(), 0.02);
  train(plain, plain_adam, 0, 3);
  std::stringstream plain_saved;
  torch::save(plain_adam, plain_saved);
  train(plain, plain_adam, 3, 5);
  torch::load(plain_adam, plain_saved);
  train(plain, plain_adam, 5, 9);
  const auto expected = copies_of(plain);
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      const auto name = folder / ("stage" + std::to_string(stage));
      {
        auto model = mlp();
        torch::optim::Adam adam(model->parameters(), 0.02);
        const auto zero = enable_zero(*model, adam, stage, communicator);
        train(model, *zero, 0, 3);
        std::stringstream saved;
        torch::save(adam, saved);
        train(model, *zero, 3, 5);
        torch::load(adam, saved);
        train(model, *zero, 5, 7);
        zero->engine().save_checkpoint(name);
        train(model, *zero, 7, 9);
        check_close(*model, expected);
        zero->engine().wait_for_checkpoint();
      }
      auto model = mlp();
      torch::optim::Adam adam(model->parameters(), 0.5);
      const auto zero = enable_zero(*model, adam, stage, communicator);
      zero->engine().load_checkpoint(name);
      train(model, *zero, 7, 9);
      check_close(*model, expected);
    }));
  }
}

TEST_CASE("Moments of other sizes, removed ones, and ones that appear later are refused by name") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    const TemporaryFolder folder;
    auto model = mlp();
    SECTION("states of another training") {
      torch::nn::Linear other_model(3, 2);
      torch::optim::Adam other(other_model->parameters(), 0.1);
      torch::optim::Adam adam(model->parameters(), 0.1);
      const auto zero = enable_zero(*model, adam, 1, communicator);
      train(model, *zero, 0, 1);
      auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
      state.exp_avg(torch::zeros({3}));
      CHECK_THAT(user_error([&] { train(model, *zero, 1, 2); }), Contains("another exp_avg, of shape [3]"));
      zero->zero_grad();
      CHECK_THAT(user_error([&] { zero->engine().save_checkpoint(folder / "out"); }),
                 Contains("another exp_avg"));
      adam.state().clear();
      CHECK_THAT(user_error([&] { train(model, *zero, 1, 2); }), Contains("has removed states"));
    }
    SECTION("momentum that begins later") {
      SGD sgd(model->parameters(), SGDOptions(0.1));
      const auto zero = enable_zero(*model, sgd, 1, communicator);
      train(model, *zero, 0, 1);
      static_cast<SGDOptions&>(sgd.param_groups()[0].options()).momentum(0.9);
      CHECK_THAT(user_error([&] { train(model, *zero, 1, 2); }),
                 Contains("has set momentum of the optimizer's parameter group 0"));
      static_cast<SGDOptions&>(sgd.param_groups()[0].options()).momentum(0);
      CHECK_NOTHROW(train(model, *zero, 2, 3));
    }
    SECTION("a parameter group that is added later") {
      SGD sgd(model->parameters(), SGDOptions(0.1));
      const auto zero = enable_zero(*model, sgd, 1, communicator);
      sgd.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2})}));
      CHECK_THAT(user_error([&] { train(model, *zero, 0, 1); }), Contains("as add_param_group() does"));
    }
  });
}

TEST_CASE("A momentum buffer that is written before the first step counts, and dampening begins after it") {
  for (const double dampening : {0.0, 0.5}) {
    for (const double written : {0.0, 100.0}) {
      CAPTURE(dampening, written);
      const auto expected = plain_sgd_with_momentum(dampening, written, 3);
      run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
        auto model = mlp();
        SGD sgd(model->parameters(), SGDOptions(0.1).momentum(0.9).dampening(dampening));
        const auto zero = enable_zero(*model, sgd, 1, communicator);
        ParameterStates states(zero->engine());
        for (const at::Tensor& parameter : model->parameters())
          states.write(parameter, "momentum_buffer", torch::full_like(parameter, written));
        train(model, *zero, 0, 3);
        CHECK(static_cast<SGDOptions&>(sgd.param_groups()[0].options()).dampening() == dampening);
        CHECK_NOTHROW(check_close(*model, expected));
      });
    }
  }
}

TEST_CASE("A checkpoint restores the count of an LRScheduler of the program") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    const auto rates = [&](bool loads, int from, int to) {
      auto model = mlp();
      SGD sgd(model->parameters(), SGDOptions(1));
      torch::optim::StepLR scheduler(sgd, 3, 0.1);
      InitializeOptions options;
      options.optimizer = &sgd;
      options.lr_scheduler = &scheduler;
      Engine engine = make_engine(*model, no_optimizer_config(1), communicator, options);
      if (loads) engine.load_checkpoint(folder / "out");
      std::vector<double> found;
      for (int step = from; step < to; ++step) {
        engine.backward(loss_of(model, step));
        engine.step();
        found.push_back(engine.get_lr()[0]);
        if (!loads && step == 4) engine.save_checkpoint(folder / "out");
      }
      engine.wait_for_checkpoint();
      return found;
    };
    const auto whole = rates(false, 0, 12);
    CHECK(whole.back() < 0.01);
    CHECK(rates(true, 5, 12) == std::vector<double>(whole.begin() + 5, whole.end()));
  });
}

TEST_CASE("A loss of another model: plain, no step; with engine.backward(), a step with gradients of 0") {
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      auto model = mlp();
      std::vector<at::Tensor> decayed;
      for (const at::Tensor& value : copies_of(model)) decayed.push_back(value * 0.95);
      SGD sgd(model->parameters(), SGDOptions(0.1).weight_decay(0.5));
      const auto zero = enable_zero(*model, sgd, stage, communicator);
      torch::nn::Linear other(3, 1);
      other->forward(torch::ones({2, 3})).sum().backward();
      expect_throws([&] { zero->step(); }, "without an earlier backward that reached a parameter", "a step");
      zero->engine().backward(other->forward(torch::ones({2, 3})).sum());
      zero->step();
      check_close(*model, decayed);
    }));
  }
}

TEST_CASE("optimizer.step() of the program trains nothing, and its gradients wait for the engine's step") {
  auto plain = mlp();
  SGD plain_sgd(plain->parameters(), 0.1);
  const auto before = copies_of(plain);
  for (const int step : {0, 1}) loss_of(plain, step).backward();
  plain_sgd.step();
  const auto expected = copies_of(plain);
  for (const int stage : {0, 2, 3}) {
    for (const bool marks : {false, true}) {
      CAPTURE(stage, marks);
      CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
        auto model = mlp();
        SGD sgd(model->parameters(), 0.1);
        InitializeOptions options;
        options.optimizer = &sgd;
        options.marks_gradients = marks;
        Engine engine = make_engine(*model, no_optimizer_config(stage), communicator, options);
        for (const int step : {0, 1}) {
          loss_of(model, step).backward();
          sgd.step();
          check_close(*model, before);
        }
        engine.step();
        check_close(*model, expected);
      }));
    }
  }
}

TEST_CASE("A checkpoint has the master weights that were written, also where the 16-bit values lag behind") {
  const TemporaryFolder folder;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      std::string config = sgd_config(stage);
      config.insert(1, R"("bf16": {"enabled": true}, )");
      const auto out = folder / ("stage" + std::to_string(stage));
      auto model = mlp(), resumed = mlp();
      Engine engine = make_engine(*model, config, communicator);
      const at::Tensor weight = model->parameters()[0];
      const at::Tensor old = weight.detach().clone();
      const at::Tensor written = torch::full_like(old, 3);
      ParameterStates(engine).write(weight, "master", torch::full(old.sizes(), 3.0F));
      engine.save_checkpoint(out);
      engine.wait_for_checkpoint();
      expect_same(weight.detach().clone(), old, "the saving engine's values before its next update");
      Engine other = make_engine(*resumed, config, communicator);
      other.load_checkpoint(out);
      expect_same(resumed->parameters()[0].detach().clone(), written, "the resumed values");

      const at::Tensor input = values({4, 5}, 1).to(at::kBFloat16);
      engine.backward(model->forward(input).to(at::kFloat).square().mean());
      engine.step();
      expect((weight.detach() - written).abs().max().item<float>() < 0.5F, "the update is one of the master");
    }));
  }
}

TEST_CASE("max_grad_norm clips as clip_grad_norm_() does in plain LibTorch") {
  auto plain = mlp();
  SGD plain_sgd(plain->parameters(), 1);
  for (int step = 0; step < 3; ++step) {
    plain_sgd.zero_grad();
    loss_of(plain, step).backward();
    CHECK(torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.05) > 0.05);
    plain_sgd.step();
  }
  const auto expected = copies_of(plain);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    {
      auto model = mlp();
      SGD sgd(model->parameters(), 1);
      const auto zero = enable_zero(*model, sgd, 2, communicator, /*max_grad_norm=*/0.05);
      train(model, *zero, 0, 3);
      check_close(*model, expected);
    }
    auto model = mlp();
    ZeroRedundancyOptimizer optimizer(SGD(model->parameters(), 1),
                                      {.communicator = communicator, .max_grad_norm = 0.05});
    train(model, optimizer, 0, 3);
    check_close(*model, expected);
    auto other = mlp();
    SGD sgd(other->parameters(), 1);
    expect_throws([&] { enable_zero(*other, sgd, 2, communicator, -1); }, "max_grad_norm -1",
                  "a norm below 0");
  }));
}

TEST_CASE("enable_zero() that finds no ranks leaves the model free for another call") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    SGD sgd(model->parameters(), 0.1);
    ::setenv("RANK", "no number", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    CHECK_THROWS(enable_zero(*model, sgd, 1));
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    CHECK_NOTHROW(enable_zero(*model, sgd, 1, communicator));
  });
}

TEST_CASE("Optimizers and parameter groups without parameters train nothing, so they are refused") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    SGD sgd(std::vector<at::Tensor>{}, 0.1);
    CHECK_THAT(user_error([&] { enable_zero(*model, sgd, 1, communicator); }),
               Contains("requires grad but is in no parameter group"));
    InitializeOptions options;
    options.parameter_groups.resize(2);
    CHECK_THAT(user_error([&] { make_engine(*model, sgd_config(1), communicator, options); }),
               Contains("requires grad but is in no parameter group"));
  });
}

TEST_CASE("A use of an engine that has been moved from says so") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    Engine moved = std::move(engine);
    const std::string text = "has been moved to another Engine";
    CHECK_THAT(user_error([&] { engine.step(); }), Contains(text));
    CHECK_THAT(user_error([&] { engine.backward(loss_of(model, 0)); }), Contains(text));
    CHECK_THAT(user_error([&] { engine.save_checkpoint("nowhere"); }), Contains(text));
    CHECK_THAT(user_error([&] { engine.get_lr(); }), Contains(text));
    CHECK_THAT(user_error([&] { const auto scope = engine.no_sync(); }), Contains(text));
    CHECK_THAT(user_error([&] { ParameterStates states(engine); }), Contains(text));
    CHECK_THAT(user_error([&] { GatheredParameters whole(engine, model->parameters()); }), Contains(text));
    moved.backward(loss_of(model, 0));
    CHECK_NOTHROW(moved.step());
  });
}

TEST_CASE("initialize() refuses what would fail later, before it changes the model") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    const auto before = copies_of(model);
    const auto unchanged = [&] {
      const auto now = copies_of(model);
      for (size_t index = 0; index < now.size(); ++index) CHECK(at::equal(now[index], before[index]));
    };
    SECTION("a schedule that throws, at stage 3") {
      InitializeOptions options;
      options.schedule = [](int64_t, int) -> ScheduledValues { throw std::runtime_error("no schedule"); };
      CHECK_THROWS_WITH(make_engine(*model, sgd_config(3), communicator, options), Contains("no schedule"));
      unchanged();
      options.schedule = [](int64_t, int) { return ScheduledValues(NAN); };
      CHECK_THAT(user_error([&] { make_engine(*model, sgd_config(3), communicator, options); }),
                 Contains("expected a learning rate that is finite"));
      options.schedule = [](int64_t, int) { return ScheduledValues(1, std::pair(0.9, 0.99)); };
      CHECK_THAT(user_error([&] { make_engine(*model, sgd_config(3), communicator, options); }),
                 Contains("betas for an optimizer that has none"));
      unchanged();
      CHECK_NOTHROW(make_engine(*model, sgd_config(3), communicator));
    }
    SECTION("inference mode") {
      {
        const c10::InferenceMode mode;
        CHECK_THAT(user_error([&] { make_engine(*model, sgd_config(1), communicator); }),
                   Contains("initialize() in inference mode"));
        model = mlp();
      }
      CHECK_THAT(user_error([&] { make_engine(*model, sgd_config(1), communicator); }),
                 Contains("was made in inference mode"));
    }
    SECTION("a model without elements, which has no formula for bytes per parameter") {
      torch::nn::Module empty;
      empty.register_parameter("none", torch::zeros({0, 3}));
      Engine engine = make_engine(empty, sgd_config(1), communicator);
      CHECK(std::isfinite(engine.formula_bytes()));
    }
    SECTION("a frozen tensor without elements whose stride is 0") {
      model->register_module("empty", torch::nn::Linear(1, 1));
      torch::nn::Module& empty = *model->named_children()["empty"];
      empty.register_parameter("none", torch::empty({1}).expand({0, 4}), /*requires_grad=*/false);
      CHECK_NOTHROW(make_engine(*model, sgd_config(1), communicator));
    }
  });
}

TEST_CASE("A second engine may not freeze what the first one trains, and the first goes on") {
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    for (const int stage : {1, 3}) {
      auto model = mlp();
      Engine first = make_engine(*model, sgd_config(stage), communicator);
      model->parameters()[0].set_requires_grad(false);
      expect_throws([&] { make_engine(*model, sgd_config(stage), communicator); },
                    "frozen parameter 0.weight is in the memory of another engine", "a second engine");
      model->parameters()[0].set_requires_grad(true);
      first.backward(loss_of(model, 0));
      first.step();
    }
  }));
}

TEST_CASE("Ranks whose optimizers differ in more than the rate are refused") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1).betas(
                                                     {0.9, communicator->rank() == 0 ? 0.99 : 0.9}));
    expect_throws([&] { enable_zero(*model, adam, 1, communicator); }, "another model or another config",
                  "other betas");
  });
}

}  // namespace zerorun::testing
