// Tests of linear_cross_entropy() beside LibTorch's linear layer and loss.
#include "activations/linear_cross_entropy.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kTokens = 21, kHidden = 8, kVocab = 30;

struct Inputs {
  at::Tensor x = values({3, 7, kHidden}, 1).requires_grad_();
  at::Tensor weight = values({kVocab, kHidden}, 2).requires_grad_();
  at::Tensor bias = values({kVocab}, 3).requires_grad_();
  at::Tensor labels = at::arange(kTokens).mul(7).remainder(kVocab).view({3, 7});
};

at::Tensor plain_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                      const std::optional<at::Tensor>& bias, bool sums) {
  return at::cross_entropy_loss(at::linear(x, weight, bias).to(at::kFloat).reshape({-1, kVocab}),
                                labels.reshape({-1}), {}, sums ? at::Reduction::Sum : at::Reduction::Mean,
                                -100);
}

double difference(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).abs().max() / expected.abs().max()).item<double>();
}

}  // namespace

TEST_CASE("linear_cross_entropy() is a linear layer and its loss, for any number of tokens at a time") {
  for (const auto [parts, has_bias, sums, ignores, type] : settings(4, 2, 2, 2, 2)) {
    CAPTURE(parts, has_bias, sums, ignores, type);
    Inputs plain, own;
    const at::ScalarType dtype = type ? at::kBFloat16 : at::kFloat;
    const auto loss_of = [&, &has_bias = has_bias, &sums = sums, &ignores = ignores, &parts = parts](
                             Inputs& inputs, bool is_plain) {
      if (ignores) inputs.labels.view(-1).slice(0, 3, 9).fill_(-100);
      const std::optional<at::Tensor> bias = has_bias ? std::optional(inputs.bias.to(dtype)) : std::nullopt;
      const at::Tensor x = inputs.x.to(dtype), weight = inputs.weight.to(dtype);
      if (is_plain) return plain_loss(x, weight, inputs.labels, bias, sums);
      const int64_t tokens[] = {1, 4, kTokens, 0};
      return linear_cross_entropy(x, weight, inputs.labels, bias,
                                  {.sums = sums != 0, .tokens = tokens[parts]});
    };
    const at::Tensor expected = loss_of(plain, true) * 3, found = loss_of(own, false) * 3;
    CHECK(difference(found.detach(), expected.detach()) < 1e-6);
    expected.backward();
    found.backward();
    const double tolerance = type ? 2e-2 : 2e-6;
    CHECK(difference(own.x.grad(), plain.x.grad()) < tolerance);
    CHECK(difference(own.weight.grad(), plain.weight.grad()) < tolerance);
    if (has_bias) CHECK(difference(own.bias.grad(), plain.bias.grad()) < tolerance);
  }
}

TEST_CASE(
    "linear_cross_entropy() holds the logits of some tokens only, and gives a frozen weight no gradient") {
  constexpr int64_t kMany = 512, kWords = 4000;
  const at::Tensor x = values({kMany, kHidden}, 1).requires_grad_(), weight = values({kWords, kHidden}, 2);
  const at::Tensor labels = at::arange(kMany).remainder(kWords);
  const AllocatedBytes bytes;
  const at::Tensor loss = linear_cross_entropy(x, weight, labels, {}, {.tokens = 16});
  loss.backward();
  CHECK(bytes.peak() < kMany * kWords * 4 / 8);
  CHECK(!weight.grad().defined());
  CHECK(x.grad().defined());
}

TEST_CASE("linear_cross_entropy() trains at every stage like LibTorch's loss in a plain process") {
  struct Head : torch::nn::Module {
    Head() {
      register_parameter("weight", values({kVocab, kHidden}, 2));
      register_parameter("bias", values({kVocab}, 3));
    }
    at::Tensor weight() { return named_parameters()["weight"]; }
    at::Tensor bias() { return named_parameters()["bias"]; }
  };
  const auto x_of = [](int step, int rank) { return values({5, kHidden}, 10 * step + rank); };
  const at::Tensor labels = at::arange(5) * 5;
  Head plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < 2; ++rank)
      (plain_loss(x_of(step, rank), plain.weight(), labels, plain.bias(), false) / 2).backward();
    optimizer.step();
  }
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    run_ranks(2, [&](auto communicator) {
      Head model;
      const int rank = communicator->rank();
      Engine engine = make_engine(model, sgd_config(stage), communicator);
      for (int step = 0; step < 3; ++step) {
        engine.backward(
            linear_cross_entropy(x_of(step, rank), model.weight(), labels, model.bias(), {.tokens = 2}));
        engine.step();
      }
      check_close(model, copies_of(plain));
    });
  }
}

TEST_CASE("linear_cross_entropy() refuses shapes that do not fit, double backward, and a split weight") {
  const Inputs inputs;
  expect_throws([&] { linear_cross_entropy(inputs.x, inputs.weight, inputs.labels.view(-1)); },
                "found [3, 7, 8], [30, 8] and [21] of Long", "labels of other sizes");
  expect_throws([&] { linear_cross_entropy(inputs.x, inputs.weight, inputs.labels, at::zeros({2})); },
                "expected a bias of sizes [30], found [2]", "a bias of other sizes");
  const at::Tensor loss = linear_cross_entropy(inputs.x, inputs.weight, inputs.labels);
  expect_throws([&] { loss.backward({}, true, true); }, "cannot be differentiated twice", "double backward");
  run_ranks(2, [&](auto communicator) {
    const DecoderOptions options = {.fused = true};
    Decoder model(options);
    Engine engine =
        decoder_engine(*model, decoder_config(0, kSgd), kTwoTensorRanks, communicator, plan_of(options));
    const at::Tensor weight = model->named_parameters()["embedding.weight"];
    expect_throws(
        [&] {
          linear_cross_entropy(at::zeros({1, weight.size(1)}), weight, at::zeros({1}, at::kLong));
        },
        "call vocab_parallel_cross_entropy()", "a split weight");
  });
}

}  // namespace zerorun::testing
