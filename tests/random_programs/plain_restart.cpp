// The part of PlainTraining about gradients, moments and checkpoints that a program reads and writes.
#include "tests/random_programs/plain_training.h"

namespace zerorun::testing {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

}  // namespace

at::Tensor PlainTraining::gradient(int index) {
  torch::NoGradGuard no_grad;
  finish_reduction();
  return gradients_[index].reduced.to(at::kFloat) / (divisor_ * scale());
}

void PlainTraining::set_gradient(int index, const at::Tensor& values) {
  gradients_[index].reduced = (values * (divisor_ * scale())).to(kept());
}

bool PlainTraining::finite() const {
  for (int index : trained_) {
    if (!gradients_[index].reduced.isfinite().all().item<bool>()) return false;
  }
  return true;
}

PlainTraining::Moments PlainTraining::moments() const {
  Moments saved{.first = {}, .second = {}, .steps = now_.optimizer_steps, .rates = rates_, .decays = decays_};
  for (const State& state : states_) {
    saved.first.push_back(copy_of(state.first));
    saved.second.push_back(copy_of(state.second));
  }
  return saved;
}

void PlainTraining::set_moments(const Moments& moments) {
  for (size_t index = 0; index < states_.size(); ++index) {
    states_[index].first = copy_of(moments.first[index]);
    states_[index].second = copy_of(moments.second[index]);
  }
  now_.optimizer_steps = moments.steps;
  rates_ = moments.rates;
  decays_ = moments.decays;
}

bool PlainTraining::can_save() const {
  if (now_.micro_steps == 0 || by_shards()) return true;
  return !departed_ && !(made_sums_ && accumulating_ != travelling_ && !whole_in_sums());
}

std::shared_ptr<const PlainTraining::Checkpoint> PlainTraining::save(bool with_frozen) const {
  torch::NoGradGuard no_grad;
  auto saved = std::make_shared<Checkpoint>();
  saved->moments = moments();
  saved->progress = now_;
  saved->gradients = gradients_;
  for (size_t index = 0; index < states_.size(); ++index) {
    at::Tensor& values = saved->values.emplace_back();
    if (!program_.parameters[index].frozen) {
      values = master_of(static_cast<int>(index)).clone();
    } else if (with_frozen) {
      values = parameters(0)[index].detach().clone();
    }
  }
  return saved;
}

void PlainTraining::load(const Checkpoint& checkpoint) {
  torch::NoGradGuard no_grad;
  const auto decays = decays_;
  set_moments(checkpoint.moments);
  decays_ = decays;  // no checkpoint has them
  now_ = checkpoint.progress;
  gradients_ = checkpoint.gradients;
  departed_ = has_gradients_ = false;
  holds_gradients_ = now_.micro_steps > 0;
  for (int index : trained_) states_[index].master = checkpoint.values[index].clone();
  for (size_t index = 0; index < states_.size(); ++index) {
    if (!checkpoint.values[index].defined()) continue;
    for (const auto& model : models_) model->all[index].copy_(checkpoint.values[index].to(training_));
  }
}

}  // namespace zerorun::testing
