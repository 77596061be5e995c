// Backwards inside a backward, as of layers that are recomputed there, and backwards that throw.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

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

}  // namespace

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

}  // namespace zerorun::testing
