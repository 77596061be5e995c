#include "optim/client_optimizer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

using torch::optim::Adagrad;
using torch::optim::AdagradOptions;
using torch::optim::AdagradParamState;

// Whether the optimizer has not been stepped. Before the first step only Adagrad has state, made by its
// constructor.
bool is_fresh(const torch::optim::Optimizer& optimizer) {
  for (const auto& [parameter, state] : optimizer.state()) {
    auto* adagrad = dynamic_cast<const AdagradParamState*>(state.get());
    if (!adagrad || adagrad->step() != 0) return false;
  }
  return true;
}

using Borrow = std::function<at::Tensor(const char*)>;

// torch::optim has no common function that creates a parameter's state. These functions create the state that
// an optimizer of each type has before it uses its first gradient.
template <typename State, typename Options>
std::unique_ptr<torch::optim::OptimizerParamState> adam_state(const Options& options, const Borrow& borrow) {
  auto state = std::make_unique<State>();
  state->step(0).exp_avg(borrow("exp_avg")).exp_avg_sq(borrow("exp_avg_sq"));
  if (options.amsgrad()) state->max_exp_avg_sq(borrow("max_exp_avg_sq"));
  return state;
}

std::unique_ptr<torch::optim::OptimizerParamState> adagrad_state(const AdagradOptions& options,
                                                                 const Borrow& borrow) {
  auto state = std::make_unique<AdagradParamState>();
  state->step(0).sum(borrow("sum").fill_(options.initial_accumulator_value()));
  return state;
}

std::unique_ptr<torch::optim::OptimizerParamState> rmsprop_state(const torch::optim::RMSpropOptions& options,
                                                                 const Borrow& borrow) {
  auto state = std::make_unique<torch::optim::RMSpropParamState>();
  state->step(0).square_avg(borrow("square_avg"));
  if (options.centered()) state->grad_avg(borrow("grad_avg"));
  if (options.momentum() > 0) state->momentum_buffer(borrow("momentum_buffer"));
  return state;
}

// Returns null for SGD, which creates its momentum buffer in the first step from the first gradient.
std::unique_ptr<torch::optim::OptimizerParamState> first_state(const torch::optim::Optimizer& optimizer,
                                                               const torch::optim::OptimizerOptions& options,
                                                               const Borrow& borrow) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<const AdamOptions*>(&options))
    return adam_state<AdamParamState>(*adam, borrow);
  if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) {
    return adam_state<AdamWParamState>(*adamw, borrow);
  }
  if (auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) return rmsprop_state(*rmsprop, borrow);
  // Uses the defaults and not the group's options, as Adagrad's constructor does.
  if (auto* adagrad = dynamic_cast<const AdagradOptions*>(&optimizer.defaults())) {
    return adagrad_state(*adagrad, borrow);
  }
  return nullptr;
}

// SGD's state has no step count.
void set_step(torch::optim::OptimizerParamState& state, int64_t step) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) adam->step(step);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) adamw->step(step);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) adagrad->step(step);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) rmsprop->step(step);
}

bool has_sgd_momentum(const torch::optim::OptimizerOptions& options) {
  auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options);
  return sgd && sgd->momentum() != 0;
}

// Null for an optimizer without betas.
std::tuple<double, double>* betas_of(torch::optim::OptimizerOptions& options) {
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &adam->betas();
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &adamw->betas();
  auto* foreign = dynamic_cast<ForeignOptions*>(&options);
  return foreign && foreign->betas ? &*foreign->betas : nullptr;
}

class ClientOptimizer : public ShardOptimizer {
 public:
  ClientOptimizer(torch::optim::Optimizer& optimizer, std::vector<Shard> shards, const BorrowMoment& borrow,
                  Device& device, StateAccess& access)
      : optimizer_(&optimizer),
        foreign_(dynamic_cast<ForeignOptimizer*>(&optimizer)),
        shards_(std::move(shards)),
        device_(&device),
        access_(&access) {
    given_state_ = std::exchange(optimizer.state(), {});
    for (auto& group : optimizer.param_groups()) given_.push_back(std::exchange(group.params(), {}));
    for (Shard& shard : shards_) {
      const bool is_wide = shard.gradient.scalar_type() == at::kFloat;
      gradients_.push_back(is_wide ? shard.gradient : device.allocate(shard.values.numel(), at::kFloat));
      auto& group = optimizer.param_groups()[shard.group];
      group.params().push_back(shard.values);
      auto state =
          first_state(optimizer, group.options(), [&](const char* name) { return borrow(shard, name); });
      if (state) optimizer.state()[shard.values.unsafeGetTensorImpl()] = std::move(state);
      if (foreign_) lend_moments(shard, borrow);
      momenta_.push_back(has_sgd_momentum(group.options()) ? borrow(shard, "momentum_buffer") : at::Tensor());
    }
  }

  // Gives the optimizer the state and parameters back that it had before the engine took it over. It outlives
  // the engine and would otherwise keep the engine's memory.
  ~ClientOptimizer() override {
    optimizer_->state() = std::move(given_state_);
    for (size_t group = 0; group < given_.size(); ++group)
      optimizer_->param_groups()[group].params() = std::move(given_[group]);
  }

  // The host must know whether to step, since torch::optim cannot skip an update on the device.
  bool reads_facts() const override { return true; }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    c10::NoGradGuard no_grad;
    StepFacts known;
    std::memcpy(&known, facts.const_data_ptr(), sizeof known);
    ZR_CHECK(known.apply != 0, "a step that is not to be applied");
    apply(known.divisor);
    for (size_t index = 0; index < shards_.size(); ++index) updated(static_cast<int>(index));
  }

  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override {
    steps_ = steps;
    if (foreign_) return foreign_->set_steps(steps);
    auto& states = optimizer_->state();
    for (size_t index = 0; index < shards_.size(); ++index) {
      void* key = shards_[index].values.unsafeGetTensorImpl();
      if (momenta_[index].defined()) states.erase(key);
      if (momenta_[index].defined() && steps > 0) {
        auto state = std::make_unique<torch::optim::SGDParamState>();
        state->momentum_buffer(momenta_[index]);
        states[key] = std::move(state);
      }
      if (const auto found = states.find(key); found != states.end()) set_step(*found->second, steps);
    }
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
  void set_weight_decay(int group, double weight_decay) override {
    using namespace torch::optim;
    OptimizerOptions& options = optimizer_->param_groups()[group].options();
    if (auto* adam = dynamic_cast<AdamOptions*>(&options)) adam->weight_decay(weight_decay);
    if (auto* adamw = dynamic_cast<AdamWOptions*>(&options)) adamw->weight_decay(weight_decay);
    if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) sgd->weight_decay(weight_decay);
    if (auto* adagrad = dynamic_cast<AdagradOptions*>(&options)) adagrad->weight_decay(weight_decay);
    if (auto* rmsprop = dynamic_cast<RMSpropOptions*>(&options)) rmsprop->weight_decay(weight_decay);
    if (auto* foreign = dynamic_cast<ForeignOptions*>(&options)) foreign->weight_decay = weight_decay;
  }
  int groups() const override { return static_cast<int>(optimizer_->param_groups().size()); }

  int64_t buffer_bytes() const override {
    size_t total = 0;
    for (size_t index = 0; index < shards_.size(); ++index) {
      if (!gradients_[index].is_same(shards_[index].gradient)) total += gradients_[index].nbytes();
    }
    return static_cast<int64_t>(total);
  }

 private:
  void lend_moments(const Shard& shard, const BorrowMoment& borrow) {
    std::vector<at::Tensor> memory;
    for (const std::string& name : foreign_->moments()) memory.push_back(borrow(shard, name.c_str()));
    foreign_->lend(shard.values, shard.group, memory);
  }

  void apply(double gradient_divisor) {
    const int count = static_cast<int>(shards_.size());
    for (int index = 0; index < count; ++index) access_->open(index, ShardUse::update);
    // Sets gradients for the step only, so that the user's zero_grad() finds none to clear.
    for (size_t index = 0; index < shards_.size(); ++index) {
      const at::Tensor& source = shards_[index].gradient;
      const at::Tensor& gradient = gradients_[index];
      if (!gradient.is_same(source)) device_->copy_scaled(gradient, source, 1);
      if (gradient_divisor != 1) gradient.div_(gradient_divisor);
      shards_[index].values.mutable_grad() = gradient;
    }
    optimizer_->step();
    if (steps_++ == 0) adopt_momenta();
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      shard.values.mutable_grad().reset();
      if (shard.rounded.defined()) device_->copy_scaled(shard.rounded, shard.values, 1);
    }
    for (int index = 0; index < count; ++index) access_->close(index, ShardUse::update);
  }

  // After the first step: moves the momentum buffers that SGD has created to the borrowed memory.
  void adopt_momenta() {
    for (size_t index = 0; index < momenta_.size(); ++index) {
      if (!momenta_[index].defined()) continue;
      auto& state = *optimizer_->state().at(shards_[index].values.unsafeGetTensorImpl());
      auto& sgd = static_cast<torch::optim::SGDParamState&>(state);
      sgd.momentum_buffer(momenta_[index].copy_(sgd.momentum_buffer()));
    }
  }

  torch::optim::Optimizer* optimizer_;
  ForeignOptimizer* foreign_;                   // the optimizer, or null
  std::vector<std::vector<at::Tensor>> given_;  // the optimizer's original parameters, by group
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())> given_state_;
  std::vector<Shard> shards_;
  Device* device_;
  StateAccess* access_;
  std::vector<at::Tensor> momenta_;  // by shard: SGD's momentum buffer; undefined without momentum
  int64_t steps_ = 0;
  std::vector<at::Tensor> gradients_;  // by shard: Shard::gradient, or its float32 copy if it has 16 bits
};

}  // namespace

void check_client_optimizer(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const ForeignOptimizer*>(&optimizer)) return;
  const std::string name = c10::demangle(typeid(optimizer).name());
  const auto& type = typeid(optimizer);
  const bool element_wise = type == typeid(torch::optim::Adam) || type == typeid(torch::optim::AdamW) ||
                            type == typeid(torch::optim::SGD) || type == typeid(Adagrad) ||
                            type == typeid(torch::optim::RMSprop);
  if (!element_wise) {
    throw UserError("optimizer " + name +
                    " may need whole parameters, which are partitioned over ranks: expected "
                    "torch::optim::Adam, AdamW, SGD, Adagrad or RMSprop, or name an optimizer in the config");
  }
  if (!is_fresh(optimizer)) {
    throw UserError(
        "optimizer " + name +
        " has been stepped before initialize(): its state belongs to whole parameters; pass it in fresh");
  }
}

std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, const BorrowMoment& borrow,
                                                      Device& device, StateAccess& access) {
  return std::make_unique<ClientOptimizer>(optimizer, std::move(shards), borrow, device, access);
}

}  // namespace zerorun
