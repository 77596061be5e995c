// Checks that loss.backward() on a model with an engine gives the same bits and the same communication volume
// as engine.backward(), and nearly the same parameters as training without an engine. Also tests the loss
// scale, several engines in one graph, and refusals.
#include <array>
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using torch::nn::Linear;

std::string config_of(int stage, const std::string& precision, int accumulation) {
  std::string text = sgd_config(stage, accumulation, 1);
  if (precision != "fp32") text.insert(1, "\"" + precision + R"(": {"enabled": true}, )");
  return text;
}

at::Tensor loss_in(Net& model, const Engine& engine, int step, int micro) {
  const at::Tensor x =
      sample(step, micro, const_cast<Engine&>(engine).communicator().rank()).to(engine.dtype());
  return model->forward(x, step % 2 == 0).to(at::kFloat).square().mean();
}

// Number of elements of gradients and parameters that this rank has sent.
double sent_by(Communicator& communicator) {
  return communicator.volume().elements(Collective::reduce_scatter) +
         communicator.volume().elements(Collective::all_gather);
}

struct Trained {
  std::vector<at::Tensor> parameters;
  double norm = 0;
  double scale = 0;
  double sent = 0;
};

using Backward = std::function<void(Engine&, const at::Tensor& loss)>;
Trained train(const std::shared_ptr<Communicator>& communicator, const std::string& config, int accumulation,
              const Backward& backward) {
  Net model;
  Engine engine = make_engine(*model, config, communicator);
  const double before = sent_by(*communicator);
  for (int step = 0; step < 4; ++step) {
    for (int micro = 0; micro < accumulation; ++micro) {
      backward(engine, loss_in(model, engine, step, micro));
      engine.step();
    }
  }
  return {copies_of(*model), engine.get_global_grad_norm(), engine.loss_scale(),
          sent_by(*communicator) - before};
}

}  // namespace

TEST_CASE("loss.backward() gives the bits and the communication volume of engine.backward(loss)") {
  for (const auto& [type, stage, accumulates, ranks] : settings(3, 4, 3, 3)) {
    const int accumulation = 1 << accumulates;
    const std::string config = config_of(stage, std::array{"fp32", "bf16", "fp16"}[type], accumulation);
    INFO(config << " on " << 1 + ranks << " ranks");
    CHECK_NOTHROW(run_ranks(1 + ranks, [&](std::shared_ptr<Communicator> communicator) {
      const Trained expected = train(communicator, config, accumulation,
                                     [](Engine& engine, const at::Tensor& loss) { engine.backward(loss); });
      const Trained found =
          train(communicator, config, accumulation,
                [](Engine& engine, const at::Tensor& loss) { engine.scale(loss).backward(); });
      expect_same(found.parameters, expected.parameters, "training");
      expect(found.norm == expected.norm && found.scale == expected.scale, "norm and scale");
      expect(found.sent == expected.sent, "traffic");
    }));
  }
}

TEST_CASE("Two engines in one graph: a GAN beside plain LibTorch") {
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      const auto generator_of = [] {
        return torch::nn::Sequential(Linear(4, 8), torch::nn::Tanh(), Linear(8, 5));
      };
      const auto judge_of = [] {
        return torch::nn::Sequential(Linear(5, 8), torch::nn::Tanh(), Linear(8, 1));
      };
      const auto losses = [&](torch::nn::Sequential& generator, torch::nn::Sequential& judge, int step,
                              int of_rank) {
        const at::Tensor fake = generator->forward(values({6, 4}, 100 * step + of_rank));
        const at::Tensor real = values({6, 5}, 5000 + 100 * step + of_rank);
        const at::Tensor judged =
            judge->forward(fake.detach()).exp().mean() + (-judge->forward(real)).exp().mean();
        return std::pair(judged, fake);
      };
      auto generator = generator_of(), judge = judge_of(), plain_generator = generator_of(),
           plain_judge = judge_of();
      for (auto* model : {&generator, &plain_generator}) fill(**model, 5);
      for (auto* model : {&judge, &plain_judge}) fill(**model, 6);
      Engine generator_engine = make_engine(*generator, sgd_config(stage), communicator);
      Engine judge_engine = make_engine(*judge, sgd_config(stage), communicator);
      torch::optim::SGD generator_sgd(plain_generator->parameters(), 0.1),
          judge_sgd(plain_judge->parameters(), 0.1);
      for (int step = 0; step < 4; ++step) {
        {
          judge_engine.zero_grad();  // drops gradients of the judge from the generator's backward
          const auto [judged, fake] = losses(generator, judge, step, rank);
          judged.backward();
          judge_engine.step();
          (-judge->forward(fake)).exp().mean().backward();  // computes gradients of both models
          generator_engine.step();
        }
        judge_sgd.zero_grad();
        std::vector<at::Tensor> fakes;
        for (const int of_rank : {0, 1}) {
          const auto [judged, fake] = losses(plain_generator, plain_judge, step, of_rank);
          (judged / 2).backward();
          fakes.push_back(fake);
        }
        judge_sgd.step();
        generator_sgd.zero_grad();
        for (const at::Tensor& fake : fakes) ((-plain_judge->forward(fake)).exp().mean() / 2).backward();
        generator_sgd.step();
      }
      check_close(*generator, copies_of(*plain_generator));
      check_close(*judge, copies_of(*plain_judge));
    }));
  }
}

TEST_CASE("Several losses, given gradients, retained graphs, and backwards of chosen inputs") {
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model, plain;
      Engine engine = make_engine(*model, sgd_config(stage), communicator);
      const auto backwards = [](Net& net, int step) {
        const at::Tensor out = net->forward(sample(step, 0, 0), true);
        const at::Tensor weights = values({2, 3}, 9);
        if (step == 0) out.backward(weights);
        if (step == 1) {
          out.square().mean().backward({}, /*retain_graph=*/true);
          out.sum().backward();
        }
        if (step == 2) torch::autograd::backward({out.square().mean(), out.mean()}, {});
        if (step == 3) {
          const at::Tensor loss = out.square().mean();
          loss.backward({}, /*retain_graph=*/true);
          loss.backward();
        }
        if (step == 4) {
          const std::vector<at::Tensor> inputs = {net->first->weight, net->last->bias};
          out.square().mean().backward({}, /*retain_graph=*/false, /*create_graph=*/false, inputs);
        }
        if (step == 5) {
          const auto slopes = torch::autograd::grad({out.square().mean()}, {net->last->weight}, {},
                                                    std::nullopt, /*create_graph=*/true);
          (slopes[0].square().sum() + out.mean()).backward();
        }
      };
      for (int step = 0; step < 6; ++step) {
        backwards(model, step);
        engine.step();
        backwards(plain, step);
        torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : plain->parameters()) {
          if (!parameter.grad().defined()) continue;
          parameter.sub_(parameter.grad() * 0.1);
          parameter.mutable_grad().reset();
        }
      }
      check_close(*model, copies_of(*plain));
    }));
  }
}

TEST_CASE("The program may say where accumulation ends") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::string how : {"set", "unmanaged", "unmanaged, steps in between"}) {
      INFO("stage " << stage << ", " << how);
      CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
        Net model;
        std::string config = sgd_config(stage, how == "set" ? 2 : 1);
        if (how != "set") config.insert(1, R"("managed_gradient_accumulation": false, )");
        Engine engine = make_engine(*model, config, communicator);
        const int rank = communicator->rank();
        for (int step = 0; step < 3; ++step) {
          for (int micro = 0; micro < 3; ++micro) {
            const bool last = micro == 2;
            if (how == "set") engine.set_gradient_accumulation_boundary(last);
            model->forward(sample(step, micro, rank), true).square().mean().backward();
            if (how == "set" || last) engine.step();
          }
        }
        expect(engine.global_steps() == 3, "steps");
        const double factor = how == "set" ? 0.5 : 1;  // the engine divides by gradient_accumulation_steps
        check_close(*model, plain_sgd(2, 1, 3, [&](Net& net, int step, int, int of_rank) {
          at::Tensor sum = torch::zeros({});
          for (int micro = 0; micro < 3; ++micro)
            sum = sum + net->forward(sample(step, micro, of_rank), true).square().mean() * factor;
          return sum;
        }));
      }));
    }
  }
}

TEST_CASE("Errors of loss.backward() and related calls") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    auto loss = [&] { return model->forward(sample(0, 0, 0), true).sum(); };
    SECTION("no backward, or one of other parameters") {
      Engine engine = make_engine(*model, sgd_config(2), communicator);
      CHECK_THROWS_WITH(engine.step(), Contains("without an earlier backward that reached a parameter"));
      torch::ones({3}, torch::requires_grad()).sum().backward();
      CHECK_THROWS_WITH(engine.step(), Contains("without an earlier backward that reached a parameter"));
    }
    SECTION("fp16 without the loss scale") {
      Engine engine = make_engine(*model, config_of(1, "fp16", 1), communicator);
      engine.set_gradient_accumulation_boundary(true);  // a refused backward does not count as the last one
      const at::Tensor x = sample(0, 0, 0).to(at::kHalf);
      CHECK_THROWS_WITH(model->forward(x, true).to(at::kFloat).sum().backward(),
                        Contains("engine.scale(loss)"));
      engine.scale(model->forward(x, true).to(at::kFloat).sum()).backward();
      engine.step();
      CHECK_THROWS_WITH(model->forward(x, true).to(at::kFloat).sum().backward(),
                        Contains("engine.scale(loss)"));
    }
    SECTION("more backwards than declared") {
      Engine engine = make_engine(*model, sgd_config(1), communicator);
      engine.set_gradient_accumulation_boundary(true);
      loss().backward();
      CHECK_THROWS_WITH(loss().backward(), Contains("a second backward before step()"));
      CHECK_THROWS_WITH(engine.backward(loss()), Contains("a second backward before step()"));
    }
    SECTION("a backward that was not declared the last, before one that is") {
      Engine engine = make_engine(*model, sgd_config(1), communicator);
      engine.set_gradient_accumulation_boundary(false);
      engine.backward(loss());
      engine.set_gradient_accumulation_boundary(true);
      engine.backward(loss());
      CHECK_THROWS_WITH(engine.backward(loss()), Contains("a second backward before step()"));
      CHECK_NOTHROW(engine.step());
    }
    SECTION("an engine without an optimizer") {
      InitializeOptions options;
      options.computes_only = true;
      Engine engine = make_engine(*model, sgd_config(3), communicator, options);
      CHECK_THROWS_WITH(engine.backward(loss()), Contains("without an optimizer"));
      CHECK_THROWS_WITH(engine.step(), Contains("without an optimizer"));
    }
    SECTION("a frozen parameter outside of buckets, unfrozen") {
      model->last->bias.requires_grad_(false);
      Engine engine = make_engine(*model, sgd_config(1), communicator);
      model->last->bias.requires_grad_(true);
      engine.backward(loss());
      CHECK_THROWS_WITH(engine.step(), Contains("last.bias was unfrozen"));
    }
    SECTION("a boundary where every step is one") {
      std::string config = sgd_config(1);
      config.insert(1, R"("managed_gradient_accumulation": false, )");
      Engine engine = make_engine(*model, config, communicator);
      CHECK_THROWS_WITH(engine.set_gradient_accumulation_boundary(true),
                        Contains("managed_gradient_accumulation"));
    }
    SECTION("an engine that has gone takes no gradients") {
      { Engine engine = make_engine(*model, sgd_config(1), communicator); }
      loss().backward();
      CHECK(model->last->bias.grad().defined());
    }
  });
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

}  // namespace zerorun::testing
