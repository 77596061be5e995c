#include "tests/random_programs/torch_optimizer.h"

namespace zerorun::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make(Options options, const Groups& groups) {
  std::vector<torch::optim::OptimizerParamGroup> given;
  for (int group = 0; group < kGroups; ++group) {
    options.lr(kLearningRate / (1 + group));
    given.emplace_back(groups[group], std::make_unique<Options>(options));
  }
  return std::make_unique<Optimizer>(given, options);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Setup& setup, const Groups& groups) {
  const double decay = setup.decay ? kWeightDecay : 0;
  // With a large eps, differences in the last bit of a small gradient do not become differences of the
  // update.
  if (setup.rule == Rule::adam_w) {
    return make<AdamW>(AdamWOptions(kLearningRate).weight_decay(decay).eps(0.01), groups);
  }
  return make<SGD>(
      SGDOptions(kLearningRate).weight_decay(decay).momentum(setup.rule == Rule::momentum ? 0.9 : 0), groups);
}

void set_decay(torch::optim::Optimizer& optimizer, int group, double decay) {
  auto& options = optimizer.param_groups()[group].options();
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) sgd->weight_decay(decay);
  if (auto* adam = dynamic_cast<AdamWOptions*>(&options)) adam->weight_decay(decay);
}

void set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  for (auto& group : optimizer.param_groups()) static_cast<SGDOptions&>(group.options()).momentum(momentum);
}

void set_state(torch::optim::Optimizer& optimizer, const Setup& setup, const at::Tensor& parameter,
               int64_t steps, const at::Tensor& first, const at::Tensor& second) {
  auto& place = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (setup.rule == Rule::adam_w) {
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(steps).exp_avg(first).exp_avg_sq(second);
    place = std::move(state);
  } else {
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(first);
    place = std::move(state);
  }
}

std::string name_of_moment(const Setup& setup) {
  return setup.rule == Rule::adam_w ? "exp_avg" : setup.rule == Rule::momentum ? "momentum_buffer" : "";
}

}  // namespace zerorun::testing
