#include "optim/client_optimizer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "base/error.h"
#include "device/step_facts.h"
#include "optim/torch_optimizers.h"

namespace zerorun {
namespace {

using torch::optim::Adagrad;
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

// SGD takes the whole gradient into its momentum buffer in the first step, whatever the dampening is. The
// buffers exist before that step here, so the dampening is 0 during the step.
class UndampenedStep {
 public:
  explicit UndampenedStep(torch::optim::Optimizer& optimizer) {
    for (auto& group : optimizer.param_groups()) {
      auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&group.options());
      if (!sgd) continue;
      given_.emplace_back(sgd, sgd->dampening());
      sgd->dampening(0);
    }
  }
  ~UndampenedStep() {
    for (const auto& [options, dampening] : given_) options->dampening(dampening);
  }
  UndampenedStep(const UndampenedStep&) = delete;
  UndampenedStep& operator=(const UndampenedStep&) = delete;

 private:
  std::vector<std::pair<torch::optim::SGDOptions*, double>> given_;
};

// The optimizers of the program that engines of this process use. Never destroyed, because destructors of
// static engines may still use it at the end of the process.
std::mutex& mutex_of_used() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::set<const torch::optim::Optimizer*>& used() {
  static auto* const optimizers = new std::set<const torch::optim::Optimizer*>;
  return *optimizers;
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
      auto& lent = lent_.emplace_back();
      auto state = first_state(optimizer, group.options(), [&](const char* name) {
        return lent.emplace_back(name, borrow(shard, name).values).second;
      });
      if (state) optimizer.state()[shard.values.unsafeGetTensorImpl()] = std::move(state);
      if (foreign_) lend_moments(shard, borrow);
    }
    for (const auto& group : optimizer.param_groups()) {
      own_.push_back(group.params());
      options_of_group_.push_back(moment_options(group.options()));
    }
    std::lock_guard lock(mutex_of_used());
    used().insert(optimizer_);
  }

  // Gives the optimizer the state and parameters back that it had before the engine took it over. It outlives
  // the engine and would otherwise keep the engine's memory.
  ~ClientOptimizer() override {
    {
      std::lock_guard lock(mutex_of_used());
      used().erase(optimizer_);
    }
    optimizer_->state() = std::move(given_state_);
    auto& groups = optimizer_->param_groups();  // the program may have removed some
    for (size_t group = 0; group < std::min(given_.size(), groups.size()); ++group)
      groups[group].params() = std::move(given_[group]);
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
      const auto found = states.find(shards_[index].values.unsafeGetTensorImpl());
      if (found != states.end()) set_step(*found->second, steps);
    }
  }

  void follow_program() override {
    check_groups();
    const c10::NoGradGuard no_grad;
    for (size_t index = 0; index < shards_.size(); ++index) {
      if (lent_[index].empty()) continue;
      const auto found = optimizer_->state().find(shards_[index].values.unsafeGetTensorImpl());
      if (found == optimizer_->state().end()) {
        throw UserError(
            "the program has removed states from the optimizer that it passed to initialize(): leave its "
            "state() as it is, or write zeros with ParameterStates");
      }
      take_over(static_cast<int>(index), *found->second);
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
    for (const std::string& name : foreign_->moments()) memory.push_back(borrow(shard, name.c_str()).values);
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
    if (steps_++ > 0) {
      optimizer_->step();
    } else {
      const UndampenedStep first(*optimizer_);
      optimizer_->step();
    }
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      shard.values.mutable_grad().reset();
      if (shard.rounded.defined()) device_->copy_scaled(shard.rounded, shard.values, 1);
    }
    for (int index = 0; index < count; ++index) access_->close(index, ShardUse::update);
  }

  void check_groups() const {
    const auto& groups = optimizer_->param_groups();
    bool is_same = groups.size() == given_.size();
    for (size_t group = 0; is_same && group < groups.size(); ++group)
      is_same =
          std::ranges::equal(groups[group].params(), own_[group],
                             [](const at::Tensor& now, const at::Tensor& own) { return now.is_same(own); });
    if (!is_same) {
      throw UserError(
          "the program has changed the parameters of the optimizer that it passed to initialize(), as "
          "add_param_group() does: the engine trains those of initialize() only; give the optimizer all "
          "parameters before");
    }
    for (size_t group = 0; group < groups.size(); ++group) {
      const MomentOptions& then = options_of_group_[group];
      const MomentOptions now = moment_options(groups[group].options());
      const char* added = now.momentum && !then.momentum   ? "momentum"
                          : now.amsgrad && !then.amsgrad   ? "amsgrad"
                          : now.centered && !then.centered ? "centered"
                                                           : nullptr;
      if (!added) continue;
      throw UserError("the program has set " + std::string(added) + " of the optimizer's parameter group " +
                      std::to_string(group) +
                      " after initialize(), where it had none: the engine keeps no state for it, and "
                      "checkpoints would lack it; set it before initialize()");
    }
  }

  // Moves moments that the program has put into the state (torch::load(optimizer)) to the borrowed memory.
  void take_over(int index, torch::optim::OptimizerParamState& state) {
    const auto& lent = lent_[index];
    bool is_same = true;
    for_each_moment(state, [&](std::string_view name, const at::Tensor& moment) {
      const auto own = std::ranges::find(lent, name, &Lent::first);
      if (own == lent.end() || moment.is_same(own->second)) return;
      is_same = false;
      if (moment.defined() && moment.sizes() == own->second.sizes()) return;
      throw UserError(c10::str(
          "the program has given the optimizer another ", name, ", of shape ",
          moment.defined() ? moment.sizes() : at::IntArrayRef(), ", where the engine keeps ",
          own->second.numel(),
          " elements: load what torch::save(optimizer) wrote on the same rank of a training with the "
          "same settings, or use checkpoints of the engine"));
    });
    if (is_same) {
      steps_ = step_of(state).value_or(steps_);  // the program may set it with the moments in place
      return;
    }
    access_->open(index, ShardUse::moments);
    for_each_moment(state, [&](std::string_view name, at::Tensor& moment) {
      const auto own = std::ranges::find(lent, name, &Lent::first);
      if (own == lent.end() || moment.is_same(own->second)) return;
      own->second.copy_(moment);
      moment = own->second;
    });
    access_->close(index, ShardUse::moments);
    steps_ = step_of(state).value_or(std::max<int64_t>(steps_, 1));
  }

  using Lent = std::pair<std::string_view, at::Tensor>;

  torch::optim::Optimizer* optimizer_;
  ForeignOptimizer* foreign_;                   // the optimizer, or null
  std::vector<std::vector<at::Tensor>> given_;  // the optimizer's original parameters, by group
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())> given_state_;
  std::vector<Shard> shards_;
  Device* device_;
  StateAccess* access_;
  std::vector<std::vector<Lent>> lent_;       // by shard: its moments, in borrowed memory
  std::vector<std::vector<at::Tensor>> own_;  // the optimizer's parameters now, by group: the shards' values
  std::vector<MomentOptions> options_of_group_;  // at initialize()
  int64_t steps_ = 0;
  std::vector<at::Tensor> gradients_;  // by shard: Shard::gradient, or its float32 copy if it has 16 bits
};

}  // namespace

// LibTorch 2.15 gives a group the default options in place of its own, if their class is none of
// torch::optim.
ForeignOptimizer::ForeignOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups)
    : Optimizer(groups, std::make_unique<ForeignOptions>()) {
  for (size_t group = 0; group < groups.size(); ++group) {
    param_groups()[group].set_options(groups[group].options().clone());
  }
}

void check_client_optimizer(const torch::optim::Optimizer& optimizer) {
  {
    std::lock_guard lock(mutex_of_used());
    if (used().contains(&optimizer)) {
      throw UserError(
          "the optimizer passed to initialize() is that of another engine, which has its parameters: destroy "
          "that engine first, or make another optimizer");
    }
  }
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
