// What torch::optim's element-wise optimizers (Adam, AdamW, SGD, Adagrad, RMSprop) do not offer by a common
// interface: their states and options. Functions without state; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace zerorun {

using Borrow = std::function<at::Tensor(const char* name)>;

/// Returns the state that the optimizer has for a parameter before it uses its first gradient, with moments
/// in the memory that `borrow` returns, which is zero. `options`: those of the parameter's group. Null if
/// there is none (SGD without momentum).
std::unique_ptr<torch::optim::OptimizerParamState> first_state(const torch::optim::Optimizer& optimizer,
                                                               const torch::optim::OptimizerOptions& options,
                                                               const Borrow& borrow);

/// SGD's state has no step count: set_step() does nothing then.
void set_step(torch::optim::OptimizerParamState& state, int64_t step);
std::optional<int64_t> step_of(const torch::optim::OptimizerParamState& state);

/// Calls visit(name, tensor) for each moment that a state of this type may have. A tensor may be undefined.
void for_each_moment(torch::optim::OptimizerParamState& state,
                     c10::function_ref<void(std::string_view, at::Tensor&)> visit);

/// Options that give an optimizer a moment which it does not have without them.
struct MomentOptions {
  bool momentum = false;
  bool amsgrad = false;
  bool centered = false;
};
MomentOptions moment_options(const torch::optim::OptimizerOptions& options);

/// Null for an optimizer without betas.
std::tuple<double, double>* betas_of(torch::optim::OptimizerOptions& options);

/// Type and hyperparameters of the optimizer, as text.
std::string describe_torch_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace zerorun
