// The part of GradientReducer that hears of gradients: hooks that autograd runs when it has accumulated one.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "zero/gradient_reducer.h"
#include "zero/interception.h"

namespace zerorun {

// Calls the program's hook of the parameter, then passes the gradient to the reducer.
struct GradientReducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::shared_ptr<GradientReducer*> reducer, int parameter,
       std::unique_ptr<PostAccumulateGradHook> of_program)
      : reducer(std::move(reducer)), parameter(parameter), of_program(std::move(of_program)) {}

  // A parameter has one slot for such hooks. A hook that the program sets is in the slot by the time that
  // this one, which was there before, is destroyed.
  ~Hook() override {
    if (*reducer) (*reducer)->set_hook(parameter);
  }
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // If a hook throws, the gradient may not stay in grad(), where the next backward would add to it.
  void operator()(const at::Tensor& tensor) override {
    const std::shared_ptr<GradientReducer*> to = reducer;  // the program's hook may replace this one
    const int index = parameter;
    try {
      if (of_program) (*of_program)(tensor);
      if (*to) (*to)->on_gradient(index, tensor);
    } catch (...) {
      const at::Tensor& left = tensor.grad();  // the gradient, or a mark of the engine, which has an owner
      if (*to && left.defined() && !owner_of(left)) tensor.mutable_grad().reset();
      throw;
    }
  }

  std::shared_ptr<GradientReducer*> reducer;
  int parameter;
  std::unique_ptr<PostAccumulateGradHook> of_program;
};

// Takes in the hook that the program has set.
void GradientReducer::set_hook(int parameter) {
  const at::Tensor& tensor = buckets_->parameters()[parameter].tensor;
  auto& slot = torch::autograd::impl::post_acc_grad_hooks(tensor);
  auto hook = std::make_unique<Hook>(self_, parameter, std::move(slot));
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::move(hook));
}

GradientReducer::~GradientReducer() {
  *self_ = nullptr;
  for (const NamedParameter& parameter : buckets_->trained()) {
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
    auto* hook = dynamic_cast<Hook*>(slot.get());
    if (hook && hook->reducer == self_) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::move(hook->of_program));
    }
  }
}

void GradientReducer::on_gradient(int parameter, const at::Tensor& tensor) {
  c10::NoGradGuard no_grad;  // create_graph leaves grad mode on
  std::lock_guard lock(hooks_);
  observe_backward();
  if (!in_backward_) return;
  at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
  if (!gradient.defined()) {
    throw UserError(
        "the gradient of parameter " + buckets_->parameters()[parameter].name +
        " was removed by a hook of the program before the engine saw it: such hooks must keep grad()");
  }
  if (!buckets_->in_place(parameter)) {  // step() reports the error
    missed_parameter_ = parameter;
    return;
  }
  has_gradients_of_backward_ = true;
  place(parameter, buckets_->flattened(parameter, gradient.is_sparse() ? gradient.to_dense() : gradient));
  ++window_arrivals_;

  plan_.note_gradient(parameter);
  start_ready_reductions();
}

void GradientReducer::observe_backward() {
  if (!observer_ || (in_backward_ && !is_observed_)) return;
  observer_();
  is_observed_ = in_backward_;
}

}  // namespace zerorun
