// Tests that tensor ranks have the same whole parameters, buffers and plans, and what scopes and states make
// of writes on some of them.
#include <catch2/catch.hpp>
#include <string>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

// A split layer, a norm on split values, a norm on whole ones, which is frozen, and a buffer. Each rank draws
// values of its own.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(uint64_t seed) {
    up = register_parameter("up", values({8, 4}, seed));
    inner = register_parameter("inner", values({1}, seed + 1));
    down = register_parameter("down", values({4, 8}, seed + 2));
    bias = register_parameter("bias", values({4}, seed + 3));
    frozen = register_parameter("frozen", values({4}, seed + 4), false);
    buffer = register_buffer("buffer", values({4}, seed + 5));
  }
  at::Tensor loss(const at::Tensor& x) {
    const at::Tensor middle = at::linear(x, up) * inner;
    return ((at::linear(middle, down, bias) + buffer) * frozen).square().sum();
  }
  at::Tensor up, inner, down, bias, frozen, buffer;
};
TORCH_MODULE(Mixed);

const TensorPlan kPlan = {{"up", TensorStyle::colwise},
                          {"inner", TensorStyle::replicated_with_grad_allreduce},
                          {"down", TensorStyle::rowwise}};

Engine mixed_engine(Mixed& model, int stage, std::shared_ptr<Communicator> communicator,
                    TensorPlan plan = kPlan) {
  return decoder_engine(*model, decoder_config(stage, kSgd), kTwoByTwo, std::move(communicator),
                        std::move(plan));
}

void expect_values_of(Mixed& model, Engine& engine, const Mixed& whole, const std::string& when) {
  GatheredParameters scope(engine, model->parameters());
  for (const auto& parameter : whole->named_parameters()) {
    expect(at::allclose(model->named_parameters()[parameter.key()], parameter.value(), 1e-4, 1e-5),
           parameter.key() + " " + when);
  }
}

}  // namespace

TEST_CASE("All tensor ranks get the first one's values, of whole and frozen parameters and of buffers too") {
  const int stage = GENERATE(0, 1, 3);
  const bool splits = GENERATE(true, false);
  CAPTURE(stage, splits);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Mixed model(10 * communicator->rank() + 1), whole(1);
    Engine engine = mixed_engine(model, stage, std::move(communicator),
                                 splits ? kPlan : TensorPlan{{"up", TensorStyle::replicated}});
    expect_values_of(model, engine, whole, "at first");
    expect(at::equal(model->buffer, whole->buffer), "the buffer");
    const at::Tensor x = values({3, 4}, 99);
    expect(at::allclose(model->loss(x), whole->loss(x)), "the loss");
  }));
}

TEST_CASE("A scope takes what the first tensor rank of the modifier wrote") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    Mixed model(1), whole(50);
    Engine engine = mixed_engine(model, stage, std::move(communicator));
    {
      GatheredParameters scope(engine, model->parameters(), 0);
      at::NoGradGuard no_grad;
      if (is_first) {
        for (const auto& parameter : whole->named_parameters())
          model->named_parameters()[parameter.key()].copy_(parameter.value());
      }
    }
    expect_values_of(model, engine, whole, "written by rank 0 alone");
    {
      GatheredParameters scope(engine, {model->up, model->up, model->bias});
      at::NoGradGuard no_grad;
      model->up.fill_(7);
      model->bias.fill_(5);
    }
    {
      at::NoGradGuard no_grad;
      whole->up.fill_(7), whole->bias.fill_(5);
    }
    expect_values_of(model, engine, whole, "written by all in a scope that reads");
    {
      GatheredParameters outer(engine, {model->up, model->down}, 1);
      GatheredParameters inner(engine, {model->up}, 0);
      at::NoGradGuard no_grad;
      if (engine.mesh().data().rank() == 0) model->up.fill_(3);
    }
    {
      at::NoGradGuard no_grad;
      whole->up.fill_(3);
    }
    expect_values_of(model, engine, whole, "written in a scope within a scope");
    expect_throws(
        [&] {
          GatheredParameters scope(engine, {model->up}, 0);
          if (is_first) model->up.set_data(at::zeros({9, 4}));
        },
        "has got [9, 4]", "other memory");
    expect_throws(
        [&] {
          GatheredParameters scope(engine, {model->up});
          model->up.set_data(at::zeros({8, 4}));
        },
        "only a scope with a modifier rank", "other memory in a scope that reads");
    expect_values_of(model, engine, whole, "after scopes that throw");
  }));
}

TEST_CASE("States show and take sums over tensor ranks") {
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Mixed model(1), whole(1);
    Engine engine = mixed_engine(model, stage, std::move(communicator));
    const at::Tensor x = values({3, 4}, 99);
    engine.backward(model->loss(x));
    whole->loss(x).backward();
    ParameterStates states(engine);
    for (int times = 0; times < 2; ++times)
      expect(at::allclose(states.read_gradient(model->inner), whole->inner.grad(), 1e-4), "the sum");
    states.write_gradient(model->inner, at::full({1}, 0.5));
    const at::Tensor before = whole->inner.detach().clone();
    engine.step();
    GatheredParameters scope(engine, {model->inner});
    const at::Tensor moved = before - model->inner.detach();
    expect(moved.item<double>() > 0 && moved.item<double>() <= 0.05001,
           "moved by the gradient that was written");
  }));
}

TEST_CASE("Evaluation in inference mode and second derivatives work on parts") {
  const int stage = GENERATE(0, 3);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Mixed model(1), whole(1);
    TensorPlan plan = kPlan;
    plan[0].style = TensorStyle::colwise_gather_output;
    plan[1].style = TensorStyle::replicated;
    plan[2].style = TensorStyle::replicated;
    Engine engine = mixed_engine(model, stage, std::move(communicator), plan);
    const at::Tensor x = values({3, 4}, 99);
    {
      c10::InferenceMode inference;
      expect(at::allclose(model->loss(x), whole->loss(x)), "in inference mode");
    }
    auto penalty = [](Mixed& of, const at::Tensor& input) {
      const at::Tensor given = input.clone().requires_grad_();
      const auto gradient =
          torch::autograd::grad({of->loss(given)}, {given}, {}, true, /*create_graph=*/true);
      return gradient[0].square().sum();
    };
    const auto expected = torch::autograd::grad({penalty(whole, x)}, {whole->up, whole->bias});
    const auto found = torch::autograd::grad({penalty(model, x)}, {model->up, model->bias});
    const int rank = engine.mesh().coordinates().tensor;
    expect(at::allclose(found[0], expected[0].narrow(0, 4 * rank, 4), 1e-3), "of the gathered layer");
    expect(at::allclose(found[1], expected[1], 1e-3), "of the bias behind it");
  }));
}

TEST_CASE("A frozen parameter that cannot be in a bucket cannot be split") {
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    for (const bool has_gaps : {true, false}) {
      Mixed model(1);
      model->register_parameter(
          "other", has_gaps ? at::zeros({4, 8}).slice(1, 0, 4) : at::zeros({4, 4}, at::kDouble), false);
      TensorPlan plan = kPlan;
      plan.push_back({"other", TensorStyle::colwise});
      expect_throws(
          [&] { decoder_engine(*model, decoder_config(1, kSgd), kTwoTensorRanks, communicator, plan); },
          has_gaps ? "with gaps" : "only parameters of the training's dtype", "initialize()");
    }
  }));
}

TEST_CASE("Ranks with other plans, and parameters of another engine, are refused") {
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Mixed model(1);
    TensorPlan plan = kPlan;
    if (communicator->rank() == 3) plan[2].cut.blocks = 2;
    expect_throws([&] { mixed_engine(model, 1, communicator, plan); },
                  "rank 3 has another model or another config", "another plan");
    Engine first = mixed_engine(model, 1, communicator);
    expect_throws([&] { mixed_engine(model, 1, communicator); }, "destroy that engine first",
                  "a second engine");
  }));
}

}  // namespace zerorun::testing
