#include "engine/tensor_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/agreement.h"
#include "engine/engine_state.h"
#include "engine/gathered_parameters.h"
#include "tensor_parallel/cross_entropy.h"

namespace zerorun {
namespace {

// How far `found` is from `expected`, relative to the largest magnitude of `expected`.
double distance(const at::Tensor& found, const at::Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  const double off = (found.to(expected.scalar_type()) - expected).abs().max().item<double>();
  return off == 0 ? 0 : off / std::max(largest, 1e-30);
}

void copy_values(Engine& engine, EngineState& state, const Model& whole) {
  std::map<std::string, at::Tensor> targets(whole.parameters.begin(), whole.parameters.end());
  for (const auto& [name, tensor] : state.model.parameters) {
    const auto target = targets.find(name);
    if (target == targets.end()) throw UserError("verify_plan(): the whole model has no parameter " + name);
    GatheredParameters values(engine, {tensor});
    if (tensor.sizes() != target->second.sizes()) {
      throw UserError(c10::str("verify_plan(): parameter ", name, " of the whole model is ",
                               target->second.sizes(), ", and of the engine's ", tensor.sizes()));
    }
    target->second.detach().copy_(tensor);
  }
}

// The gradient as a plain process has it: joined or summed over tensor ranks.
at::Tensor joined(const EngineState& state, const NamedParameter& parameter, const at::Tensor& gradient) {
  const std::string label = "the gradient of " + parameter.name;
  const TensorGroupPtr& group = state.tensor_rule->group();
  if (parameter.share == Share::split) return whole_of(gradient, *parameter.split, group, label);
  if (parameter.share == Share::summed)
    return sum_over_ranks(gradient.clone(at::MemoryFormat::Contiguous), group, label);
  return gradient;
}

}  // namespace

at::Tensor vocab_parallel_cross_entropy(Engine& engine, const at::Tensor& weight, const at::Tensor& logits,
                                        const at::Tensor& targets, int64_t ignored) {
  const EngineState& state = *engine.state_;
  const std::optional<SplitTensor> split = state.tensor_rule ? state.tensor_rule->find(weight) : std::nullopt;
  if (!split) return at::cross_entropy_loss(logits.to(at::kFloat), targets, {}, at::Reduction::Mean, ignored);
  return split_cross_entropy(logits, targets, *split->split, state.tensor_rule->group(), ignored);
}

void verify_plan(Engine& engine, const Model& whole, const std::function<at::Tensor()>& loss_of_whole,
                 const std::function<at::Tensor()>& loss, double tolerance) {
  EngineState& state = *engine.state_;
  state.finish_open_step();
  state.check_between_steps("verify_plan");
  state.check_not_divided("verify_plan");
  if (!state.tensor_rule) return;
  {
    c10::NoGradGuard no_grad;
    copy_values(engine, state, whole);
  }
  std::map<std::string, at::Tensor> of_whole(whole.parameters.begin(), whole.parameters.end());
  std::vector<at::Tensor> whole_trained, trained;
  for (const NamedParameter& parameter : state.buckets.trained()) {
    trained.push_back(parameter.tensor);
    whole_trained.push_back(of_whole.at(parameter.name));
  }
  const at::Tensor expected_loss = loss_of_whole(), found_loss = loss();
  const auto expected = torch::autograd::grad({expected_loss}, whole_trained, {}, {}, false, true);
  const auto found = torch::autograd::grad({found_loss}, trained, {}, {}, false, true);
  if (state.residency) state.residency->finish_iteration();

  c10::NoGradGuard no_grad;
  std::string wrong;
  int count = 0;
  constexpr int kNamed = 8;
  auto note = [&](const std::string& what, double off) {
    if (off <= tolerance || ++count > kNamed) return;
    wrong += c10::str(wrong.empty() ? "" : ", ", what, " (by ", off, ")");
  };
  note("the loss", distance(found_loss.detach().reshape({1}), expected_loss.detach().reshape({1})));
  for (size_t index = 0; index < trained.size(); ++index) {
    const NamedParameter& parameter = state.buckets.parameters()[index];
    if (!expected[index].defined() || !found[index].defined()) {
      if (expected[index].defined() != found[index].defined()) note(parameter.name, INFINITY);
      continue;
    }
    note("the gradient of " + parameter.name,
         distance(joined(state, parameter, found[index]), expected[index]));
  }
  on_all_ranks(state.mesh.world(), "verify_plan", [&] {
    if (count == 0) return;
    throw UserError("verify_plan(): split among " + std::to_string(state.mesh.sizes().tensor) +
                    " tensor ranks, the model computes something else than whole: " + wrong +
                    (count > kNamed ? " and " + std::to_string(count - kNamed) + " more" : "") +
                    ". Look for a module of the plan that sums, normalises or counts over the dimension that "
                    "is split");
  });
}

}  // namespace zerorun
