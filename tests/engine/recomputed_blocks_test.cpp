// Tests blocks that are recomputed: what they may take and return, and what is refused.
#include <ATen/autocast_mode.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "activations/block_operators.h"
#include "activations/recomputable.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {

namespace {

struct Marked : torch::nn::Module {
  Marked()
      : first(register_module("first", torch::nn::Linear(4, 4))),
        second(register_module("second", torch::nn::Linear(4, 4))) {}
  torch::nn::Linear first, second;
};

// Trains `steps` steps of `loss_of` at stage 2, all marked blocks recomputed or none.
std::vector<at::Tensor> train_marked(const std::function<at::Tensor(Marked&, int step)>& loss_of,
                                     bool recomputes, std::shared_ptr<Communicator> communicator,
                                     const std::function<void(Marked&)>& prepare = {}) {
  Marked model;
  fill(model, 8);
  if (prepare) prepare(model);
  Engine engine =
      make_engine(model, block_config(2, recomputes ? recomputing(R"("every": 1)") : ""), communicator);
  for (int step = 0; step < 3; ++step) {
    engine.backward(loss_of(model, step));
    engine.step();
  }
  GatheredParameters whole(engine, model.parameters());
  return copies_of(model);
}

void expect_like_plain(const std::function<at::Tensor(Marked&, int step)>& loss_of,
                       const std::function<void(Marked&)>& prepare = {}) {
  run_ranks(2, [&](auto communicator) {
    expect_same(train_marked(loss_of, true, communicator, prepare),
                train_marked(loss_of, false, communicator, prepare), "parameters");
  });
}

}  // namespace

TEST_CASE("A block may have several outputs, undefined inputs, integers, and tensors that nothing uses") {
  expect_like_plain([](Marked& model, int step) {
    const at::Tensor x = values({3, 4}, step);
    const auto [y, counts, unused] = recomputable(
        *model.first,
        [&](const at::Tensor& given, const at::Tensor& mask, const at::Tensor& places) {
          const at::Tensor y = model.first(given);
          return std::tuple(mask.defined() ? y * mask : y, places + 1, y.exp());
        },
        x, at::Tensor(), at::arange(4));
    const Tensors both = recomputable(
        *model.second,
        [&](const at::Tensor& given) {
          return Tensors{model.second(given), given * 2};
        },
        y);
    return (both[0] * counts).square().sum() + both[1].sum();
  });
}

TEST_CASE("A frozen beginning, a frozen block and a block that gives its input back") {
  const auto freeze = [](Marked& model) {
    for (const at::Tensor& parameter : model.first->parameters()) parameter.set_requires_grad(false);
  };
  expect_like_plain(
      [](Marked& model, int step) {
        const at::Tensor x = recomputable(*model.first, values({3, 4}, step));
        expect(!x.requires_grad(), "nothing is recomputed that is not differentiated");
        const at::Tensor y = recomputable(*model.second, x);
        return recomputable(
                   *model.second, [](const at::Tensor& given) { return given; }, y)
            .square()
            .sum();
      },
      freeze);
}

TEST_CASE("A block that computes otherwise when it is recomputed is refused by name") {
  run_ranks(1, [](auto communicator) {
    int calls = 0;
    const auto loss_of = [&](Marked& model, int step) {
      return recomputable(
                 *model.first,
                 [&](const at::Tensor& x) {
                   const at::Tensor y = model.first(x);
                   return ++calls % 2 == 1 ? y : y.narrow(0, 0, 2);
                 },
                 values({3, 4}, step))
          .sum();
    };
    expect_throws(
        [&] { train_marked(loss_of, true, communicator); },
        "block first computes otherwise when it is recomputed: output 1 is Float of sizes [2, 4], before "
        "Float of sizes [3, 4]; operator 3 of 3 is SliceBackward0, before there was none",
        "another shape");
  });
}

TEST_CASE("The first operator that a recomputation does not repeat is named") {
  using Change = std::function<at::Tensor(const at::Tensor& y)>;
  const at::Tensor x = values({3, 4}, 1).requires_grad_();
  const auto operators_of = [&](const Change& change) {
    const uint64_t begin = next_operator();
    return operators_behind({change(torch::relu(x)).sum({1})}, begin);
  };
  const auto difference = [&](const Change& now, const Change& before) {
    return describe_difference(operators_of(now), operators_of(before));
  };
  const auto as_it_is = [](const at::Tensor& y) { return y; };
  const auto sine = [](const at::Tensor& y) { return y.sin(); };
  CHECK(difference(sine, sine).empty());
  CHECK(difference(sine, [](const at::Tensor& y) { return y.cos(); }) ==
        "operator 2 of 3 is SinBackward0, before CosBackward0");
  CHECK(difference(sine, as_it_is) == "operator 2 of 3 is SinBackward0, before SumBackward1");
  CHECK(difference(as_it_is, sine) == "operator 2 of 2 is SumBackward1, before SinBackward0");
  CHECK(difference([](const at::Tensor& y) { return y.narrow(1, 0, 2); },
                   [](const at::Tensor& y) { return y.narrow(1, 0, 3); }) ==
        "operator 2 of 3 is SliceBackward0, whose result has other sizes or another dtype than before");
  CHECK(difference([](const at::Tensor& y) { return y.to(at::kDouble).to(at::kFloat); }, as_it_is).empty());
}

TEST_CASE("Other operators with results of the same sizes are a warning, once for each block") {
  StderrCapture capture;
  run_ranks(1, [&](auto communicator) {
    int calls = 0;
    const auto loss_of = [&](Marked& model, int step) {
      const auto block = [&](const at::Tensor& x) {
        const at::Tensor y = model.first(x);
        return ++calls % 2 == 1 ? y.sin() : y.cos();
      };
      return recomputable(*model.first, block, values({3, 4}, step)).sum();
    };
    train_marked(loss_of, true, communicator);
  });
  const std::string text =
      "block first computes otherwise when it is recomputed: operator 3 of 3 is CosBackward0, before "
      "SinBackward0: it must";
  const std::string log = capture.text();
  CHECK(log.find(text) != std::string::npos);
  CHECK(log.find(text) == log.rfind(text));
}

TEST_CASE("autograd::grad(), double backward and inputs that were overwritten are refused by name") {
  run_ranks(1, [](auto communicator) {
    Marked model;
    fill(model, 8);
    Engine engine = make_engine(model, block_config(2, recomputing(R"("every": 1)")), communicator);
    at::Tensor x = values({3, 4}, 1).requires_grad_();
    const auto loss = [&] { return recomputable(*model.first, x * 2).sum(); };
    expect_throws([&] { torch::autograd::grad({loss()}, {x}); }, "block first is recomputed in backward",
                  "autograd::grad()");
    expect_throws([&] { engine.backward(loss(), false, /*create_graph=*/true); }, "create_graph",
                  "double backward");
    model.zero_grad();
    at::Tensor written = x * 2;
    const at::Tensor late = recomputable(*model.first, written).sum();
    written.mul_(2);
    expect_throws([&] { engine.backward(late); }, "modified by an inplace operation", "an input overwritten");
    model.zero_grad();
  });
}

TEST_CASE("An error in a recomputation leaves generators, autocast and the engine as they were") {
  run_ranks(1, [](auto communicator) {
    Marked model;
    fill(model, 8);
    Engine engine = make_engine(model, block_config(1, recomputing(R"("every": 1)")), communicator);
    bool fails = true;
    int calls = 0;
    const auto loss = [&] {
      return recomputable(
                 *model.first,
                 [&](const at::Tensor& x) {
                   const at::Tensor y = at::dropout(model.first(x), 0.5, true);
                   if (++calls == 2 && fails) throw std::runtime_error("the block fails");
                   return y;
                 },
                 values({3, 4}, 1))
          .square()
          .sum();
    };
    const at::Tensor failing = loss();
    const at::Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
    expect_throws([&] { engine.backward(failing); }, "the block fails", "the block's error");
    expect(at::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()), "generators");
    expect(!at::autocast::is_autocast_enabled(at::kCPU), "autocast");
    fails = false;
    model.zero_grad();
    engine.backward(loss());
    engine.step();
  });
}

TEST_CASE(
    "A block that writes to its input in place is refused by name, also where the input requires no grad") {
  run_ranks(1, [](auto communicator) {
    Marked model;
    fill(model, 8);
    Engine engine = make_engine(model, block_config(1, recomputing(R"("every": 1)")), communicator);
    const auto run = [&](at::Tensor x) {
      return recomputable(
          *model.first, [&](at::Tensor given) { return model.first(given.mul_(2)); }, x);
    };
    expect_throws(
        [&] {
          run(values({3, 4}, 1));
        },
        "block first is recomputed in backward, for which its inputs", "an input that requires no grad");
    expect_throws(
        [&] {
          run(values({3, 4}, 1).requires_grad_() * 1);
        },
        "block first is recomputed in backward, for which its inputs", "an input that requires grad");
  });
}

TEST_CASE("A block may return a constant that it has captured, which stays as it is") {
  const at::Tensor constant = values({3, 4}, 9);
  expect_like_plain([&](Marked& model, int step) {
    const auto [y, same] = recomputable(
        *model.first, [&](const at::Tensor& given) { return std::tuple(model.first(given), constant); },
        values({3, 4}, step));
    expect(!constant.requires_grad() && !same.requires_grad(), "the captured tensor");
    return (y * same).square().sum() + model.second(y).sum();
  });
}

TEST_CASE("A block that returns a parameter is refused by name") {
  run_ranks(2, [](auto communicator) {
    Marked model;
    fill(model, 8);
    Engine engine = make_engine(model, block_config(3, recomputing(R"("every": 1)")), communicator);
    expect_throws(
        [&] {
          recomputable(
              *model.first, [&](const at::Tensor&) { return model.first->weight; }, values({3, 4}, 1));
        },
        "block first, which is recomputed in backward, returns a parameter", "a parameter");
  });
}

TEST_CASE("Outputs of a block may be written in place") {
  expect_like_plain([](Marked& model, int step) {
    const at::Tensor x = values({2, 3, 4}, step);
    at::Tensor y = recomputable(*model.first, x);
    return recomputable(*model.second, y.relu_()).square().sum();
  });
}

TEST_CASE("Patterns that name no module are refused") {
  run_ranks(1, [](auto communicator) {
    Marked model;
    expect_throws(
        [&] { make_engine(model, block_config(1, recomputing(R"("patterns": ["h.*"])")), communicator); },
        "zerorun.recompute.patterns: \"h.*\" names no module of the model", "a pattern");
  });
}

TEST_CASE("Blocks of a model without an engine, or of one that is gone, run as if they had no mark") {
  Marked model;
  fill(model, 8);
  const auto gradient = [&] {
    model.zero_grad();
    recomputable(*model.first, values({3, 4}, 1)).square().sum().backward();
    return model.first->weight.grad().clone();
  };
  const at::Tensor expected = gradient();
  run_ranks(1, [&](auto communicator) {
    Engine engine = make_engine(model, block_config(0, recomputing(R"("every": 1)")), communicator);
    CHECK(find_block(*model.first));
  });
  CHECK(!find_block(*model.first));
  CHECK(at::equal(gradient(), expected));
}

}  // namespace zerorun::testing
