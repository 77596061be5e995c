// Tests the fused optimizer. Adam, AdamW and SGD are compared with their formulas in float64;
// torch_optim_test.cpp tests the other optimizers. Other properties are tested for all optimizers.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>

#include "tests/optim/shards.h"

namespace zerorun {
namespace {

using testing::adam;
using testing::no_update;
using testing::sgd;
using testing::Tensors;

constexpr int kSteps = 20;

// One element, updated in float64 by the formulas of Adam (Kingma and Ba), AdamW (Loshchilov and Hutter) and
// SGD with momentum. As in PyTorch, SGD's buffer after the first step is the gradient itself.
class Element {
 public:
  Element(const OptimizerConfig& config, double value) : config_(config), value_(value) {}

  double value() const { return value_; }

  void step(double gradient) {
    ++steps_;
    if (const auto* sgd = std::get_if<SgdConfig>(&config_)) return step_sgd(*sgd, gradient);
    step_adam(std::get<AdamConfig>(config_), gradient);
  }

 private:
  void step_adam(const AdamConfig& config, double gradient) {
    if (config.decoupled) {
      value_ *= 1 - config.lr * config.weight_decay;
    } else {
      gradient += config.weight_decay * value_;
    }
    first_ = config.beta1 * first_ + (1 - config.beta1) * gradient;
    second_ = config.beta2 * second_ + (1 - config.beta2) * gradient * gradient;
    const double correction1 = config.bias_correction ? 1 - std::pow(config.beta1, steps_) : 1;
    const double correction2 = config.bias_correction ? 1 - std::pow(config.beta2, steps_) : 1;
    value_ -= config.lr * (first_ / correction1) / (std::sqrt(second_ / correction2) + config.eps);
  }

  void step_sgd(const SgdConfig& config, double gradient) {
    gradient += config.weight_decay * value_;
    if (config.momentum != 0) {
      first_ = steps_ == 1 ? gradient : config.momentum * first_ + (1 - config.dampening) * gradient;
      gradient = config.nesterov ? gradient + config.momentum * first_ : first_;
    }
    value_ -= config.lr * gradient;
  }

  OptimizerConfig config_;
  double value_;
  double first_ = 0;
  double second_ = 0;
  int steps_ = 0;
};

// The values of `tensors` after kSteps steps with the configs of `groups`.
std::vector<std::vector<double>> expected(const std::vector<OptimizerConfig>& groups, const Tensors& tensors,
                                          double divisor) {
  std::vector<std::vector<double>> result;
  for (size_t i = 0; i < tensors.values.size(); ++i) {
    const int64_t numel = tensors.values[i].numel();
    std::vector<Element> elements;
    const float* start = tensors.values[i].const_data_ptr<float>();
    for (int64_t j = 0; j < numel; ++j) elements.emplace_back(groups[tensors.groups[i]], start[j]);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor gradient = testing::gradient_of(static_cast<int64_t>(i), step, numel);
      const float* g = gradient.const_data_ptr<float>();
      for (int64_t j = 0; j < numel; ++j) elements[j].step(g[j] / divisor);
    }
    result.emplace_back();
    for (const Element& element : elements) result.back().push_back(element.value());
  }
  return result;
}

void train(ShardOptimizer& optimizer, Tensors& tensors, double divisor = 1, int steps = kSteps) {
  for (int step = 0; step < steps; ++step) {
    tensors.set_gradients(step);
    optimizer.step(testing::facts(divisor), no_update);
  }
}

Tensors some_tensors() {
  Tensors tensors;
  for (int64_t numel : {1, 15, 16, 17, 64, 257}) tensors.add(numel);
  return tensors;
}

void check_against_formulas(const std::vector<OptimizerConfig>& groups, Tensors tensors, double divisor = 1) {
  const auto wanted = expected(groups, tensors, divisor);
  auto optimizer = make_fused_optimizer(groups, tensors.shards(), testing::lend());
  train(*optimizer, tensors, divisor);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const float* got = tensors.values[i].const_data_ptr<float>();
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      // Tolerance: twenty float32 roundings of values of order 1.
      if (std::abs(got[j] - wanted[i][j]) <= 3e-6) continue;
      FAIL_CHECK("tensor " << i << " element " << j << ": " << got[j] << ", expected " << wanted[i][j]);
      return;
    }
  }
  CHECK(!wanted.empty());
}

}  // namespace

TEST_CASE("fused AdamW follows the formulas") {
  check_against_formulas({adam()}, some_tensors());
  AdamConfig defaults;
  check_against_formulas({defaults}, some_tensors());
}

TEST_CASE("fused Adam with L2 regularisation follows the formulas") {
  check_against_formulas({adam(false)}, some_tensors());
}

TEST_CASE("fused Adam without bias correction follows the formulas") {
  for (const bool decoupled : {true, false}) {
    AdamConfig config = adam(decoupled);
    config.bias_correction = false;
    check_against_formulas({config}, some_tensors());
  }
}

TEST_CASE("fused SGD follows the formulas") {
  SgdConfig dampened = sgd(0.9);
  dampened.dampening = 0.3;
  SgdConfig nesterov = sgd(0.9);
  nesterov.nesterov = true;
  for (SgdConfig config : {sgd(0), sgd(0.9), dampened, nesterov}) {
    check_against_formulas({config}, some_tensors());
    config.weight_decay = 0;
    check_against_formulas({config}, some_tensors());
  }
}

TEST_CASE("fused: gradients are divided by the divisor first") {
  check_against_formulas({adam()}, some_tensors(), 8);
  check_against_formulas({adam(false)}, some_tensors(), 2.7);
  check_against_formulas({sgd(0.9)}, some_tensors(), 2.7);
}

TEST_CASE("fused: each group has its own settings") {
  AdamConfig other = adam();
  other.lr = 0.002;
  other.weight_decay = 0;
  other.beta1 = 0.5;
  AdamConfig uncorrected = adam();
  uncorrected.bias_correction = false;
  Tensors tensors;
  for (int group : {0, 1, 2, 1, 0}) tensors.add(48, group);
  check_against_formulas({adam(), other, uncorrected}, tensors);
}

// All stages give the same bits because of this property: a rank that updates the whole bucket (stage 0) gets
// the bits of ranks that each update one slice.
TEST_CASE("fused: the slices of 1, 2, 3 or 6 ranks get the same bits as the whole") {
  for (const OptimizerConfig& config : testing::all_optimizers()) {
    std::vector<at::Tensor> results;
    for (int slices : {1, 2, 3, 6}) {
      Tensors tensors;
      tensors.add(16 * 6 * 1011);  // large enough for LibTorch to use several threads
      auto optimizer = make_fused_optimizer({config}, tensors.shards(slices), testing::lend());
      train(*optimizer, tensors, 2.7, 4);
      results.push_back(tensors.values[0]);
    }
    for (const at::Tensor& result : results) CHECK(at::equal(result, results[0]));
  }
}

TEST_CASE("fused: shards may be empty, and the callback gets each shard once, in order, when it is final") {
  Tensors tensors;
  tensors.add(32);
  tensors.add(0);
  tensors.add(48);
  for (const OptimizerConfig& config : testing::all_optimizers()) {
    auto optimizer = make_fused_optimizer({config}, tensors.shards(), testing::lend());
    tensors.set_gradients(0);
    std::vector<at::Tensor> told;
    optimizer->step(testing::facts(1), [&](int index) {
      CHECK(index == static_cast<int>(told.size()));
      told.push_back(tensors.values[index].clone());
    });
    REQUIRE(told.size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(at::equal(told[i], tensors.values[i]));
  }
}

TEST_CASE("fused: borrows the moments of its formula, and nothing else") {
  Tensors tensors;
  tensors.add(32, 0);
  tensors.add(48, 1);
  auto borrowed = [&](const OptimizerConfig& first, const OptimizerConfig& second) {
    int64_t bytes = 0;
    auto optimizer = make_fused_optimizer({first, second}, tensors.shards(), testing::lend_counted(bytes));
    CHECK(optimizer->buffer_bytes() == 0);
    return bytes;
  };
  CHECK(borrowed(adam(), adam()) == 80 * 8);
  CHECK(borrowed(sgd(0.9), sgd(0)) == 32 * 4);
  AdamConfig amsgrad = adam();
  amsgrad.amsgrad = true;
  CHECK(borrowed(amsgrad, amsgrad) == 80 * 12);
  CHECK(borrowed(testing::adagrad(), testing::lion()) == 80 * 4);
  CHECK(borrowed(testing::rmsprop(0, false), testing::rmsprop(0.9, true)) == 32 * 4 + 48 * 12);
  CHECK(borrowed(testing::rmsprop(0.9, false), testing::rmsprop(0, true)) == 80 * 8);
}

TEST_CASE("fused: moments have torch.optim's names, and are in borrowed memory") {
  Tensors tensors;
  tensors.add(32);
  std::map<std::string, at::Tensor> moments;
  auto optimizer = make_fused_optimizer({testing::rmsprop(0.9, true)}, tensors.shards(),
                                        [&](const Shard& shard, const char* name) {
                                          return moments[name] = at::zeros({shard.values.numel()});
                                        });
  at::Tensor plain = tensors.values[0].clone();
  const RmspropConfig config = testing::rmsprop(0.9, true);
  torch::optim::RMSprop reference({plain}, torch::optim::RMSpropOptions(config.lr)
                                               .alpha(config.alpha)
                                               .eps(config.eps)
                                               .weight_decay(config.weight_decay)
                                               .momentum(config.momentum)
                                               .centered(true));
  tensors.set_gradients(0);
  plain.mutable_grad() = testing::gradient_of(0, 0, 32);
  optimizer->step(testing::facts(1), no_update);
  reference.step();
  const auto& state =
      static_cast<const torch::optim::RMSpropParamState&>(*reference.state().at(plain.unsafeGetTensorImpl()));
  REQUIRE(moments.size() == 3);
  CHECK(at::allclose(moments.at("square_avg"), state.square_avg(), 1e-5, 1e-8));
  CHECK(at::allclose(moments.at("grad_avg"), state.grad_avg(), 1e-5, 1e-8));
  CHECK(at::allclose(moments.at("momentum_buffer"), state.momentum_buffer(), 1e-4, 1e-6));
}

TEST_CASE("fused: learning rates read and set by group") {
  Tensors tensors;
  tensors.add(32, 0);
  tensors.add(48, 1);
  auto adam_optimizer = make_fused_optimizer({adam(), adam()}, tensors.shards(), testing::lend());
  CHECK(adam_optimizer->groups() == 2);
  CHECK(adam_optimizer->lr(1) == 0.01);
  adam_optimizer->set_lr(1, 0);
  CHECK(adam_optimizer->lr(0) == 0.01);
  CHECK(adam_optimizer->lr(1) == 0);
  const at::Tensor before = tensors.values[1].clone();
  tensors.set_gradients(0);
  adam_optimizer->step(testing::facts(1), no_update);
  CHECK(at::equal(tensors.values[1], before));
  CHECK_FALSE(at::equal(tensors.values[0], testing::uniform(32, 0)));
}

// Like DeepSpeed's Adam, torch::optim computes the bias correction from the betas of the current step.
TEST_CASE("fused: betas that change between steps give the values of torch::optim::AdamW") {
  Tensors tensors;
  tensors.add(100);
  at::Tensor plain = tensors.values[0].clone();
  const AdamConfig config = adam();
  torch::optim::AdamW reference(
      {plain}, torch::optim::AdamWOptions(config.lr).eps(config.eps).weight_decay(config.weight_decay));
  auto fused = make_fused_optimizer({config}, tensors.shards(), testing::lend());
  for (int step = 0; step < 5; ++step) {
    const std::pair<double, double> betas(0.5 + 0.1 * step, 0.99 - 0.01 * step);
    fused->set_betas(0, betas);
    CHECK(fused->betas(0) == betas);
    static_cast<torch::optim::AdamWOptions&>(reference.param_groups()[0].options()).betas(betas);
    tensors.set_gradients(step);
    plain.mutable_grad() = testing::gradient_of(0, step, 100);
    fused->step(testing::facts(1), no_update);
    reference.step();
  }
  CHECK(at::allclose(tensors.values[0], plain, 1e-6, 1e-7));
  CHECK(!make_fused_optimizer({sgd(0.9)}, {}, testing::lend())->betas(0));
}

}  // namespace zerorun
