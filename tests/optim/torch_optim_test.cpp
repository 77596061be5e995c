// Compares the config's optimizers with torch::optim on whole tensors in float64. LibTorch has no Lion, so
// Lion is compared with the formulas of its paper.
#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "base/error.h"
#include "optim/update_rule_of.h"
#include "tests/optim/shards.h"

namespace zerorun {
namespace {

using testing::adagrad;
using testing::adam;
using testing::rmsprop;
using testing::sgd;
using testing::Tensors;

constexpr int kSteps = 20;
constexpr double kDivisor = 2.7;

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

template <typename Optimizer, typename Options>
Make maker(const Options& options) {
  return [options](const Parameters& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

Tensors some_tensors() {
  Tensors tensors;
  for (int64_t numel : {1, 15, 16, 17, 64, 257}) tensors.add(numel);
  return tensors;
}

at::Tensor gradient(size_t index, int step, const at::Tensor& values) {
  return testing::gradient_of(static_cast<int64_t>(index), step, values.numel()).to(at::kDouble) / kDivisor;
}

Parameters train_fused(const OptimizerConfig& config) {
  Tensors tensors = some_tensors();
  auto optimizer = make_fused_optimizer({config}, tensors.shards(), testing::lend());
  for (int step = 0; step < kSteps; ++step) {
    tensors.set_gradients(step);
    optimizer->step(testing::facts(kDivisor), testing::no_update);
  }
  return tensors.values;
}

Parameters train_torch(const Make& make) {
  Parameters parameters;
  for (const at::Tensor& values : some_tensors().values) parameters.push_back(values.to(at::kDouble));
  auto optimizer = make(parameters);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = gradient(i, step, parameters[i]);
    }
    optimizer->step();
  }
  return parameters;
}

double largest_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

// Allows a few float32 roundings of values of order 1 in each of twenty steps.
constexpr double kTolerance = 3e-6;

void check_same(const OptimizerConfig& config, const Make& make) {
  CHECK(largest_difference(train_fused(config), train_torch(make)) < kTolerance);
}

}  // namespace

TEST_CASE("torch::optim: Adam and AdamW, with and without AMSGrad") {
  using namespace torch::optim;
  for (const bool amsgrad : {false, true}) {
    AdamConfig config = adam();
    config.amsgrad = amsgrad;
    check_same(
        config,
        maker<AdamW>(AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1).amsgrad(amsgrad)));
    config.decoupled = false;
    check_same(
        config,
        maker<Adam>(AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1).amsgrad(amsgrad)));
  }
  AdamConfig defaults;
  check_same(defaults, maker<AdamW>(AdamWOptions(1e-3).weight_decay(0)));
  // With these gradients AMSGrad must differ from Adam, or the comparison above would not test AMSGrad.
  AdamConfig amsgrad = adam();
  amsgrad.amsgrad = true;
  CHECK(largest_difference(train_fused(amsgrad), train_fused(adam())) > 1e-4);
}

TEST_CASE("torch::optim: SGD") {
  using namespace torch::optim;
  check_same(sgd(0), maker<SGD>(SGDOptions(0.05).weight_decay(0.1)));
  SgdConfig dampened = sgd(0.9);
  dampened.dampening = 0.3;
  check_same(dampened, maker<SGD>(SGDOptions(0.05).weight_decay(0.1).momentum(0.9).dampening(0.3)));
  SgdConfig nesterov = sgd(0.9);
  nesterov.nesterov = true;
  check_same(nesterov, maker<SGD>(SGDOptions(0.05).weight_decay(0.1).momentum(0.9).nesterov(true)));
}

TEST_CASE("torch::optim: Adagrad") {
  using namespace torch::optim;
  check_same(adagrad(), maker<Adagrad>(AdagradOptions(0.05).weight_decay(0.1)));
  AdagradConfig slowing = adagrad();
  slowing.lr_decay = 0.3;
  slowing.initial_accumulator_value = 0.4;
  check_same(
      slowing,
      maker<Adagrad>(AdagradOptions(0.05).weight_decay(0.1).lr_decay(0.3).initial_accumulator_value(0.4)));
  slowing.eps = 0.1;
  slowing.weight_decay = 0;
  check_same(slowing,
             maker<Adagrad>(AdagradOptions(0.05).lr_decay(0.3).initial_accumulator_value(0.4).eps(0.1)));
}

TEST_CASE("torch::optim: RMSprop with and without momentum, centered and not") {
  using namespace torch::optim;
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) {
      CAPTURE(momentum, centered);
      const auto options = RMSpropOptions(0.01).alpha(0.9).weight_decay(0.1).momentum(momentum);
      RmspropConfig config = rmsprop(momentum, centered);
      check_same(config, maker<RMSprop>(RMSpropOptions(options).centered(centered)));
      config.eps = 0.1;
      check_same(config, maker<RMSprop>(RMSpropOptions(options).centered(centered).eps(0.1)));
    }
  }
}

TEST_CASE("update rules: Lamb has none for single elements") {
  REQUIRE_THROWS_AS(update_rule_of(LambConfig(), 1), InternalError);
}

// The expected values follow Chen et al. 2023, algorithm 2, in float64.
TEST_CASE("Lion follows its paper over many steps") {
  const LionConfig config = testing::lion();
  const Parameters found = train_fused(config);
  Parameters values;
  for (const at::Tensor& start : some_tensors().values) values.push_back(start.to(at::kDouble));
  for (size_t i = 0; i < values.size(); ++i) {
    at::Tensor momentum = at::zeros_like(values[i]);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor g = gradient(i, step, values[i]);
      const at::Tensor update = (momentum * config.beta1 + g * (1 - config.beta1)).sign();
      values[i] = values[i] - (update + values[i] * config.weight_decay) * config.lr;
      momentum = momentum * config.beta2 + g * (1 - config.beta2);
    }
  }
  CHECK(largest_difference(found, values) < kTolerance);
}

}  // namespace zerorun
