// Tests uses of parameters that hooks on modules would not see, with every parameter released as early as
// possible. The bits must be those of the same module without the engine.
#include <catch2/catch.hpp>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"

namespace zerorun::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::indexing::Slice;
using namespace torch::nn;
namespace F = torch::nn::functional;

// Computes x W^T. The function itself saves W for backward.
struct SavesWeight : torch::autograd::Function<SavesWeight> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, at::Tensor weight) {
    context->save_for_backward({x, weight});
    return x.matmul(weight.t());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].matmul(saved[1]), gradients[0].t().matmul(saved[0])};
  }
};

LinearImpl& layer_at(const AutogradContext& context) {
  return *reinterpret_cast<LinearImpl*>(context.saved_data.at("layer").toInt());
}

// Recomputes its layer in a nested backward, in which the layer's gradients arrive.
struct RecomputedByBackward : torch::autograd::Function<RecomputedByBackward> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    torch::NoGradGuard no_grad;
    return torch::tanh(layer_at(*context).forward(x));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::AutoGradMode grad(true);
    torch::autograd::backward({torch::tanh(layer_at(*context).forward(x))}, gradients);
    return {x.grad(), at::Tensor()};
  }
};

// Recomputes its layer in backward, computes the gradients with autograd::grad(), and returns them.
struct RecomputedByGrad : torch::autograd::Function<RecomputedByGrad> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, at::Tensor weight, at::Tensor bias) {
    context->save_for_backward({x, weight, bias});
    return torch::tanh(F::linear(x, weight, bias));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list inputs = context->get_saved_variables();
    inputs[0] = inputs[0].detach().requires_grad_(true);
    torch::AutoGradMode grad(true);
    const at::Tensor output = torch::tanh(F::linear(inputs[0], inputs[1], inputs[2]));
    return torch::autograd::grad({output}, inputs, gradients);
  }
};

}  // namespace

TEST_CASE("Weights joined, stacked, indexed and split") {
  check_beside_plain("cat", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {4, 5}), b = built.add_parameter("b", {3, 5});
    return [=](int i) { return F::linear(values({2, 5}, i), torch::cat({a, b})); };
  });
  check_beside_plain("stack", [](Built& built) {
    std::vector<at::Tensor> parts;
    for (const char* name : {"a", "b", "c", "d", "e", "f"})
      parts.push_back(built.add_parameter(name, {8, 5}));
    return [=](int i) { return values({6, 2, 5}, i).bmm(torch::stack(parts).transpose(1, 2)); };
  });
  check_beside_plain("index", [](Built& built) {
    const at::Tensor a = built.add_parameter("a", {6, 5}), b = built.add_parameter("b", {6, 5});
    return [=](int i) {
      const at::Tensor rows = torch::tensor({5, 0, 0, 2});
      return values({4, 5}, i) * a.index({rows}) + b.index({Slice(1, 5)}) * b.index_select(0, rows) +
             a[i % 6];
    };
  });
  check_beside_plain("one matrix for three projections", [](Built& built) {
    const at::Tensor qkv = built.add_parameter("qkv", {15, 5}), norm = built.add_parameter("norm", {5, 1});
    return [=](int i) {
      const auto parts = qkv.chunk(3);
      const at::Tensor x = values({4, 5}, i);
      return x.matmul(parts[0].t()) * x.matmul(parts[1].t()) + x.matmul(parts[2] * norm / parts[2].norm());
    };
  });
}

TEST_CASE("Tied and shared weights, and weights used elsewhere") {
  check_beside_plain("tied", [](Built& built) {
    auto embedding = built.add("embedding", Embedding(7, 9));
    auto middle = built.add("middle", Linear(9, 9));
    built.register_parameter("head", embedding->weight);
    return [=](int i) mutable {
      const at::Tensor tokens = torch::arange(5).add(i).remainder(7);
      return F::linear(torch::tanh(middle(embedding(tokens))), embedding->weight);
    };
  });
  check_beside_plain("one module, used twice", [](Built& built) {
    auto shared = built.add("shared", Linear(6, 6)), between = built.add("between", Linear(6, 6));
    return [=](int i) mutable {
      return shared(torch::tanh(between(torch::tanh(shared(values({3, 6}, i))))));
    };
  });
  check_beside_plain("one module under two names", [](Built& built) {
    auto first = built.add("first", Linear(6, 6));
    built.add("second", first);
    return [=](int i) mutable { return first(torch::tanh(first(torch::tanh(first(values({3, 6}, i)))))); };
  });
  check_beside_plain("used outside of its owner", [](Built& built) {
    auto encoder = built.add("encoder", Linear(9, 4));
    auto bias = built.add_parameter("bias", {9});
    return [=](int i) mutable {
      return torch::tanh(encoder(values({3, 9}, i))).matmul(encoder->weight) + bias +
             encoder->bias.square().sum();
    };
  });
}

TEST_CASE("Functions with a backward of their own") {
  check_beside_plain("saves its parameter", [](Built& built) {
    const at::Tensor first = built.add_parameter("first", {7, 5}),
                     second = built.add_parameter("second", {6, 7});
    return [=](int i) {
      return SavesWeight::apply(torch::tanh(SavesWeight::apply(values({3, 5}, i), first)), second);
    };
  });
  check_beside_plain("recomputes by backward", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), middle = built.add("middle", Linear(8, 8));
    auto last = built.add("last", Linear(8, 3));
    return [=](int i) mutable {
      const at::Tensor hidden = torch::tanh(first(values({4, 5}, i)));
      return last(RecomputedByBackward::apply(hidden, reinterpret_cast<int64_t>(middle.get())));
    };
  });
  check_beside_plain("recomputes by backward, twice", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), middle = built.add("middle", Linear(8, 8));
    return [=](int i) mutable {
      const auto layer = reinterpret_cast<int64_t>(middle.get());
      return RecomputedByBackward::apply(RecomputedByBackward::apply(first(values({4, 5}, i)), layer), layer);
    };
  });
  check_beside_plain("recomputes by grad", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), middle = built.add("middle", Linear(8, 8));
    auto last = built.add("last", Linear(8, 3));
    return [=](int i) mutable {
      const at::Tensor hidden = torch::tanh(first(values({4, 5}, i)));
      return last(RecomputedByGrad::apply(hidden, middle->weight, middle->bias));
    };
  });
}

TEST_CASE("Frozen and unused parts, empty parameters") {
  check_beside_plain("frozen", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), middle = built.add("middle", Linear(8, 8));
    auto last = built.add("last", Linear(8, 3));
    for (const at::Tensor& parameter : middle->parameters()) parameter.set_requires_grad(false);
    return [=](int i) mutable { return last(torch::tanh(middle(torch::tanh(first(values({4, 5}, i)))))); };
  });
  check_beside_plain("unused", [](Built& built) {
    auto used = built.add("used", Linear(5, 8));
    built.add("unused", Linear(8, 8));
    built.add_parameter("empty", {0, 4});
    return [=](int i) mutable { return used(values({4, 5}, i)); };
  });
  check_beside_plain(
      "unused at times",
      [](Built& built) {
        auto first = built.add("first", Linear(5, 8)), branch = built.add("branch", Linear(8, 8));
        return [=](int i) mutable {
          const at::Tensor hidden = torch::tanh(first(values({4, 5}, i)));
          return i % 2 == 0 ? hidden : branch(hidden);
        };
      },
      /*same_uses=*/false);
  check_beside_plain("another batch each time", [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), second = built.add("second", Linear(8, 8));
    return [=](int i) mutable { return second(torch::tanh(first(values({2 + i, 5}, i)))); };
  });
}

}  // namespace zerorun::testing
