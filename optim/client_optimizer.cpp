#include "optim/client_optimizer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

using torch::optim::Adagrad;
using torch::optim::AdagradOptions;
using torch::optim::AdagradParamState;

// Tensors in one parameter's state, by optimizer: torch::optim has no common way to ask.
std::vector<at::Tensor> state_tensors(const torch::optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    return {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
  }
  if (auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    return {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()};
  }
  if (auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) return {sgd->momentum_buffer()};
  if (auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return {adagrad->sum()};
  if (auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    return {rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()};
  }
  return {};
}

// Adagrad alone makes its state when it is constructed.
bool is_fresh(const torch::optim::Optimizer& optimizer) {
  for (const auto& [parameter, state] : optimizer.state()) {
    auto* adagrad = dynamic_cast<const AdagradParamState*>(state.get());
    if (!adagrad || adagrad->step() != 0) return false;
  }
  return true;
}

int moment_bytes_of(const torch::optim::Optimizer& optimizer) {
  const auto& defaults = optimizer.defaults();
  if (auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&defaults)) return adam->amsgrad() ? 12 : 8;
  if (auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&defaults))
    return adamw->amsgrad() ? 12 : 8;
  if (auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&defaults))
    return sgd->momentum() != 0 ? 4 : 0;
  if (auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&defaults)) {
    return 4 + (rmsprop->momentum() > 0 ? 4 : 0) + (rmsprop->centered() ? 4 : 0);
  }
  return 4;
}

// Null for an optimizer without betas.
std::tuple<double, double>* betas_of(torch::optim::OptimizerOptions& options) {
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &adam->betas();
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &adamw->betas();
  return nullptr;
}

class ClientOptimizer : public ShardOptimizer {
 public:
  ClientOptimizer(torch::optim::Optimizer& optimizer, std::vector<Shard> shards, Device& device)
      : optimizer_(&optimizer), shards_(std::move(shards)), device_(&device) {
    given_state_ = std::exchange(optimizer.state(), {});
    for (auto& group : optimizer.param_groups()) given_.push_back(std::exchange(group.params(), {}));
    for (Shard& shard : shards_) {
      const bool is_wide = shard.gradient.scalar_type() == at::kFloat;
      gradients_.push_back(is_wide ? shard.gradient : at::empty_like(shard.values));
      auto& group = optimizer.param_groups()[shard.group];
      group.params().push_back(shard.values);
      if (dynamic_cast<Adagrad*>(&optimizer)) {
        // As its constructor does it: by the defaults, whatever a group says.
        auto state = std::make_unique<AdagradParamState>();
        const auto& options = static_cast<const AdagradOptions&>(optimizer.defaults());
        state->step(0).sum(at::full_like(shard.values, options.initial_accumulator_value()));
        optimizer.state()[shard.values.unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }

  // It outlives the engine, whose memory would stay with it.
  ~ClientOptimizer() override {
    optimizer_->state() = std::move(given_state_);
    for (size_t group = 0; group < given_.size(); ++group)
      optimizer_->param_groups()[group].params() = std::move(given_[group]);
  }

  // torch::optim cannot leave a step undone.
  bool reads_facts() const override { return true; }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    c10::NoGradGuard no_grad;
    StepFacts known;
    std::memcpy(&known, facts.const_data_ptr(), sizeof known);
    ZR_CHECK(known.apply != 0, "a step that is not to be applied");
    apply(known.divisor);
    for (size_t index = 0; index < shards_.size(); ++index) updated(static_cast<int>(index));
  }

  double lr(int group) const override { return optimizer_->param_groups()[group].options().get_lr(); }
  void set_lr(int group, double lr) override { optimizer_->param_groups()[group].options().set_lr(lr); }
  std::optional<std::pair<double, double>> betas(int group) const override {
    const auto* betas = betas_of(optimizer_->param_groups()[group].options());
    return betas ? std::optional(std::pair(std::get<0>(*betas), std::get<1>(*betas))) : std::nullopt;
  }
  void set_betas(int group, std::pair<double, double> betas) override {
    auto* held = betas_of(optimizer_->param_groups()[group].options());
    ZR_CHECK(held, "betas for an optimizer that has none");
    *held = betas;
  }
  int groups() const override { return static_cast<int>(optimizer_->param_groups().size()); }

  int64_t state_bytes() const override {
    size_t total = 0;
    for (const auto& [parameter, state] : optimizer_->state()) {
      for (const at::Tensor& tensor : state_tensors(*state)) {
        if (tensor.defined()) total += tensor.nbytes();
      }
    }
    return static_cast<int64_t>(total);
  }

  int64_t buffer_bytes() const override {
    size_t total = 0;
    for (size_t index = 0; index < shards_.size(); ++index) {
      if (!gradients_[index].is_same(shards_[index].gradient)) total += gradients_[index].nbytes();
    }
    return static_cast<int64_t>(total);
  }

  int moment_bytes(int /*group*/) const override { return moment_bytes_of(*optimizer_); }

 private:
  void apply(double gradient_divisor) {
    // Gradients are lent for the step alone, so that the user's own zero_grad() has nothing to take away.
    for (size_t index = 0; index < shards_.size(); ++index) {
      const at::Tensor& source = shards_[index].gradient;
      const at::Tensor& gradient = gradients_[index];
      if (!gradient.is_same(source)) device_->copy_scaled(gradient, source, 1);
      if (gradient_divisor != 1) gradient.div_(gradient_divisor);
      shards_[index].values.mutable_grad() = gradient;
    }
    optimizer_->step();
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      shard.values.mutable_grad().reset();
      if (shard.rounded.defined()) device_->copy_scaled(shard.rounded, shard.values, 1);
    }
  }

  torch::optim::Optimizer* optimizer_;
  std::vector<std::vector<at::Tensor>> given_;  // its parameters before, by group
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())> given_state_;
  std::vector<Shard> shards_;
  Device* device_;
  std::vector<at::Tensor> gradients_;  // as torch::optim wants them: float32, widened where they are not
};

}  // namespace

void check_client_optimizer(const torch::optim::Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  const auto& type = typeid(optimizer);
  const bool element_wise = type == typeid(torch::optim::Adam) || type == typeid(torch::optim::AdamW) ||
                            type == typeid(torch::optim::SGD) || type == typeid(Adagrad) ||
                            type == typeid(torch::optim::RMSprop);
  if (!element_wise) {
    throw UserError(
        "optimizer " + name +
        " may look at whole parameters, which are spread over ranks: expected torch::optim::Adam, AdamW, "
        "SGD, Adagrad or RMSprop, or name an optimizer in the config");
  }
  if (!is_fresh(optimizer)) {
    throw UserError(
        "optimizer " + name +
        " has been stepped before initialize(): its state belongs to whole parameters; pass it in fresh");
  }
}

std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, Device& device) {
  return std::make_unique<ClientOptimizer>(optimizer, std::move(shards), device);
}

}  // namespace zerorun
