// Checks that loss.backward() on a model with an engine gives the same bits and the same communication volume
// as engine.backward(), and nearly the same parameters as training without an engine. Also tests backwards
// that throw, dropped batches, and several engines in one graph.
#include <torch/nn/utils/clip_grad.h>

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

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

// Recomputes a layer in backward, so that its gradients arrive in a nested graph task.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    torch::NoGradGuard no_grad;
    return torch::tanh(reinterpret_cast<torch::nn::LinearImpl*>(layer)->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::AutoGradMode grad(true);
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    torch::tanh(layer->forward(x)).backward(gradients[0]);
    if (throws_after) throw std::runtime_error("after the nested backward");
    return {x.grad(), at::Tensor()};
  }
  static thread_local bool throws_after;
};
thread_local bool Recompute::throws_after = false;

struct Blocks : torch::nn::Module {
  explicit Blocks(int count) {
    for (int index = 0; index < count; ++index)
      layers.push_back(register_module("layer" + std::to_string(index), Linear(6, 6)));
    fill(*this, 17);
  }
  at::Tensor forward(at::Tensor x, bool recomputes) {
    x.requires_grad_(true);
    for (Linear& layer : layers)
      x = recomputes ? Recompute::apply(x, reinterpret_cast<int64_t>(layer.ptr().get()))
                     : torch::tanh(layer->forward(x));
    return x.square().mean();
  }
  std::vector<Linear> layers;
};

InitializeOptions with_marks() {
  InitializeOptions options;
  options.marks_gradients = true;
  return options;
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

TEST_CASE("Recomputed layers: each bucket is reduced once a step, and nested backwards do not end the pass") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int bucket : {36, 100'000}) {
      INFO("stage " << stage << ", buckets of " << bucket);
      CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
        double reduced = 0;  // number of gradient elements that this rank sent in the last run
        const auto run = [&](bool recomputes, bool is_plain) {
          Blocks model(4);
          InitializeOptions options;
          options.bucket_numel = bucket;
          Engine engine = make_engine(model, sgd_config(stage), communicator, options);
          const double before = communicator->volume().elements(Collective::reduce_scatter);
          for (int step = 0; step < 3; ++step) {
            const at::Tensor loss = model.forward(values({3, 6}, step), recomputes);
            if (is_plain) {
              loss.backward();
            } else {
              engine.backward(loss);
            }
            engine.step();
          }
          reduced = communicator->volume().elements(Collective::reduce_scatter) - before;
          return copies_of(model);
        };
        const auto expected = run(false, false);
        const double once_each = reduced;
        expect(once_each >= 3 * 4 * 42 / 2, "half of each gradient is sent");
        if (bucket > 36)
          expect(once_each < 3 * 4 * 42, "no gradient is sent twice");  // one bucket has little padding
        expect_same(run(true, false), expected, "recomputed");
        expect(reduced == once_each, "traffic, recomputed");
        expect_same(run(true, true), expected, "recomputed, loss.backward()");
        expect(reduced == once_each, "traffic, recomputed, loss.backward()");
        expect_same(run(false, true), expected, "loss.backward()");
        expect(reduced == once_each, "traffic, loss.backward()");
      }));
    }
  }
}

TEST_CASE(
    "A backward that throws is dropped with the micro-steps before it by zero_grad(), and training goes on") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::string where : {"in a hook", "in hooks of other layers", "before any gradient",
                                    "after a nested backward", "in a hook, and a backward at once"}) {
      for (const bool is_plain : {true, false}) {
        INFO("stage " << stage << ", " << where << (is_plain ? ", loss.backward()" : ", engine.backward()"));
        CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
          const bool nested = where == "after a nested backward";
          const auto run = [&](bool fails) {
            Blocks model(3);
            Engine engine = make_engine(model, sgd_config(stage, 2), communicator);
            const auto backward = [&](const at::Tensor& loss) {
              if (is_plain) {
                loss.backward();
              } else {
                engine.backward(loss);
              }
            };
            for (int step = 0; step < 4; ++step) {
              engine.set_gradient_accumulation_boundary(false);
              if (fails && step == 2) {
                backward(model.forward(values({3, 6}, 77), nested));  // dropped below
                engine.step();
                at::Tensor x = values({3, 6}, 78).requires_grad_(true);
                at::Tensor hidden = model.layers[0]->forward(x);
                at::Tensor middle = torch::tanh(model.layers[1]->forward(hidden));
                at::Tensor out =
                    nested ? model.forward(hidden, true) : model.layers[2]->forward(middle).square().mean();
                const bool is_late = where == "in hooks of other layers" ? communicator->rank() == 0
                                                                         : where.starts_with("in a hook");
                const at::Tensor& hooked = is_late ? hidden : where.starts_with("in hooks") ? middle : out;
                if (!nested) {
                  hooked.register_hook(
                      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on purpose"); });
                }
                Recompute::throws_after = nested;
                expect_throws([&] { backward(out); }, nested ? "after the nested" : "on purpose", "backward");
                Recompute::throws_after = false;
                out = hidden = middle = at::Tensor();
                if (where.ends_with("at once")) {
                  expect_throws([&] { backward(model.forward(x, nested)); }, "the last backward threw",
                                "backward");
                } else if (where != "before any gradient" || !is_plain) {
                  expect_throws([&] { engine.step(); }, "the last backward threw", "step()");
                }
                engine.zero_grad();
              }
              for (int micro = 0; micro < 2; ++micro) {
                engine.set_gradient_accumulation_boundary(micro == 1);
                backward(model.forward(values({3, 6}, 10 * step + micro), nested));
                engine.step();
              }
            }
            return copies_of(model);
          };
          expect_same(run(true), run(false), "after a backward that threw");
        }));
      }
    }
  }
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
      Engine engine = make_engine(*model, sgd_config(stage, 2), communicator, with_marks());
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
      Engine engine = make_engine(*model, sgd_config(stage, 2), communicator, with_marks());
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

// Between two backwards: what the program does to gradients, and whether the engine drops them.
TEST_CASE("Marks in grad() tell the engine which gradients the program drops or sets") {
  const int stage = GENERATE(0, 1, 2, 3);
  using Change = std::function<void(Net&)>;
  auto trained = [stage](bool starts_with_other, const Change& change) {
    std::vector<std::vector<at::Tensor>> found(2);
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      InitializeOptions options;
      options.marks_gradients = true;
      const int rank = communicator->rank();
      Engine engine = make_engine(*model, sgd_config(stage, 1, 1), communicator, options);
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

}  // namespace zerorun::testing
