#include "optim/torch_optimizers.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <sstream>
#include <typeinfo>

#include "optim/client_optimizer.h"

namespace zerorun {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdagradParamState;

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

std::unique_ptr<torch::optim::OptimizerParamState> sgd_state(const torch::optim::SGDOptions& options,
                                                             const Borrow& borrow) {
  if (options.momentum() == 0) return nullptr;
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(borrow("momentum_buffer"));
  return state;
}

}  // namespace

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
  if (auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd_state(*sgd, borrow);
  // Uses the defaults and not the group's options, as Adagrad's constructor does.
  if (auto* adagrad = dynamic_cast<const AdagradOptions*>(&optimizer.defaults())) {
    return adagrad_state(*adagrad, borrow);
  }
  return nullptr;
}

void set_step(torch::optim::OptimizerParamState& state, int64_t step) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) adam->step(step);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) adamw->step(step);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) adagrad->step(step);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) rmsprop->step(step);
}

std::optional<int64_t> step_of(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<const AdamParamState*>(&state)) return adam->step();
  if (auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return adamw->step();
  if (auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return adagrad->step();
  if (auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state)) return rmsprop->step();
  return std::nullopt;
}

void for_each_moment(torch::optim::OptimizerParamState& state,
                     c10::function_ref<void(std::string_view, at::Tensor&)> visit) {
  using namespace torch::optim;
  const auto visit_adam = [&](auto& adam) {
    visit("exp_avg", adam.exp_avg());
    visit("exp_avg_sq", adam.exp_avg_sq());
    visit("max_exp_avg_sq", adam.max_exp_avg_sq());
  };
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) visit_adam(*adam);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) visit_adam(*adamw);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) visit("sum", adagrad->sum());
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) visit("momentum_buffer", sgd->momentum_buffer());
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) {
    visit("square_avg", rmsprop->square_avg());
    visit("momentum_buffer", rmsprop->momentum_buffer());
    visit("grad_avg", rmsprop->grad_avg());
  }
}

MomentOptions moment_options(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<const AdamOptions*>(&options)) return {.amsgrad = adam->amsgrad()};
  if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return {.amsgrad = adamw->amsgrad()};
  if (auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return {.momentum = sgd->momentum() != 0};
  if (auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options))
    return {.momentum = rmsprop->momentum() > 0, .centered = rmsprop->centered()};
  return {};
}

std::tuple<double, double>* betas_of(torch::optim::OptimizerOptions& options) {
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &adam->betas();
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &adamw->betas();
  auto* foreign = dynamic_cast<ForeignOptions*>(&options);
  return foreign && foreign->betas ? &*foreign->betas : nullptr;
}

std::string describe_torch_optimizer(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  std::ostringstream text;
  text.precision(17);
  const auto add = [&](auto... values) { ((text << ' ' << values), ...); };
  const auto add_adam = [&](const auto& adam) {
    const auto& [beta1, beta2] = adam.betas();
    add(adam.lr(), beta1, beta2, adam.eps(), adam.weight_decay(), adam.amsgrad());
  };
  text << c10::demangle(typeid(optimizer).name());
  for (const auto& group : optimizer.param_groups()) {
    const OptimizerOptions& options = group.options();
    text << "; group";
    if (auto* foreign = dynamic_cast<const ForeignOptions*>(&options))
      add(foreign->lr, foreign->weight_decay);
    if (auto* adam = dynamic_cast<const AdamOptions*>(&options)) add_adam(*adam);
    if (auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) add_adam(*adamw);
    if (auto* sgd = dynamic_cast<const SGDOptions*>(&options))
      add(sgd->lr(), sgd->momentum(), sgd->dampening(), sgd->weight_decay(), sgd->nesterov());
    if (auto* adagrad = dynamic_cast<const AdagradOptions*>(&options))
      add(adagrad->lr(), adagrad->lr_decay(), adagrad->weight_decay(), adagrad->initial_accumulator_value(),
          adagrad->eps());
    if (auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options))
      add(rmsprop->lr(), rmsprop->alpha(), rmsprop->eps(), rmsprop->weight_decay(), rmsprop->momentum(),
          rmsprop->centered());
  }
  return text.str();
}

}  // namespace zerorun
