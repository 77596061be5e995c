// Compares the width that hidden_size_of() finds with the width that the model was made with.
#include "engine/hidden_size.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "samples/gpt2/model.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;

std::optional<int64_t> hidden_size_of(const torch::nn::Module& module) {
  Model model;
  for (const auto& item : module.named_parameters()) model.parameters.emplace_back(item.key(), item.value());
  return zerorun::hidden_size_of(model);
}

TEST_CASE("The hidden size of a GPT-2 is its width for any depth, vocabulary and length") {
  const samples::Gpt2Options options =
      GENERATE(samples::Gpt2Options{},
               samples::Gpt2Options{.layers = 1, .hidden = 16, .heads = 2, .vocab = 256, .positions = 16},
               samples::Gpt2Options{.layers = 2, .hidden = 64, .heads = 4, .vocab = 256, .positions = 32},
               samples::Gpt2Options{.layers = 12, .hidden = 96, .heads = 6, .vocab = 288, .positions = 384});
  CHECK(hidden_size_of(*samples::Gpt2(options)) == options.hidden);
}

TEST_CASE("The hidden size of a model built under DeferredInit is found and takes no memory") {
  std::optional<DeferredInit> scope(std::in_place);
  samples::Gpt2 model(
      samples::Gpt2Options{.layers = 2, .hidden = 48, .heads = 4, .vocab = 256, .positions = 32});
  CHECK(hidden_size_of(*model) == 48);
  scope.reset();
  CHECK(hidden_size_of(*model) == 48);
  for (const at::Tensor& parameter : model->parameters()) CHECK(is_deferred(parameter));
}

TEST_CASE("The hidden size of other modules") {
  using torch::nn::Sequential;
  CHECK(hidden_size_of(*Sequential(Linear(256, 128), Linear(128, 10))) == 128);

  SECTION("of sizes that occur equally often, the smaller") {
    CHECK(hidden_size_of(*Sequential(Linear(48, 12), Linear(12, 48))) == 12);
    CHECK(hidden_size_of(*Sequential(Linear(12, 48), Linear(48, 12))) == 12);
  }
  SECTION("kernels of convolutions do not count") {
    auto convolution = [](int64_t in, int64_t out) {
      return Conv2d(Conv2dOptions(in, out, /*kernel_size=*/7).bias(false));
    };
    CHECK(hidden_size_of(*Sequential(convolution(3, 16), convolution(16, 32), convolution(32, 16))) == 16);
  }
  SECTION("sizes 1 do not count") {
    CHECK(hidden_size_of(*Sequential(Linear(5, 1), Linear(1, 1), Linear(1, 1))) == 5);
    CHECK(hidden_size_of(*Linear(1, 1)) == std::nullopt);
  }
  SECTION("a frozen parameter counts, a tied one counts once") {
    torch::nn::Module model;
    const at::Tensor tied = model.register_parameter("tied", torch::zeros({5, 7}));
    model.register_parameter("tied_again", tied);
    model.register_parameter("and_again", tied);
    model.register_parameter("square", torch::zeros({9, 9}), /*requires_grad=*/false);
    CHECK(hidden_size_of(model) == 9);
  }
  SECTION("a model without parameters has none") {
    CHECK(hidden_size_of(torch::nn::Module()) == std::nullopt);
    CHECK(hidden_size_of(*torch::nn::ReLU()) == std::nullopt);
  }
}

}  // namespace
}  // namespace zerorun::testing
