#include "activations/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "activations/forward_state.h"
#include "base/error.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

using torch::autograd::AutogradContext;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBytesOfLogits = 64 << 20;

struct Call : torch::CustomClassHolder {
  LinearCrossEntropyOptions options;
  AutocastState autocast;
  bool trains_weight;
  bool trains_bias;
};

// Calls visit(begin, count) for some tokens at a time.
template <typename Visit>
void for_each_part(int64_t tokens, int64_t at_a_time, const Visit& visit) {
  for (int64_t begin = 0; begin < tokens; begin += at_a_time)
    visit(begin, std::min(at_a_time, tokens - begin));
}

at::Tensor logits_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

// The gradient of the logits of some tokens. `factor`: that of the loss of one token.
at::Tensor gradient_of_logits(const at::Tensor& logits, const at::Tensor& log_sums, const at::Tensor& labels,
                              const at::Tensor& factor, int64_t ignore_index) {
  const at::Tensor counted = labels.ne(ignore_index);
  at::Tensor gradient = (logits.to(at::kFloat) - log_sums.unsqueeze(1)).exp_();
  gradient.scatter_add_(1, labels.clamp_min(0).unsqueeze(1),
                        at::full({labels.size(0), 1}, -1, gradient.options()));
  gradient.mul_((counted.to(at::kFloat) * factor).unsqueeze(1));
  return gradient.to(logits.scalar_type());
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Call>& call,
                            const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    const AutocastCacheOff cache_off;
    const auto& [ignore_index, sums, at_a_time] = call->options;
    const at::Tensor log_sums = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    at::Tensor loss = at::zeros({}, log_sums.options());
    for_each_part(x.size(0), at_a_time, [&, &ignore_index = ignore_index](int64_t begin, int64_t count) {
      const at::Tensor logits =
          logits_of(x.narrow(0, begin, count), weight, bias.value_or(at::Tensor())).to(at::kFloat);
      const at::Tensor its = labels.narrow(0, begin, count);
      const at::Tensor sum = at::logsumexp(logits, {1});
      log_sums.narrow(0, begin, count).copy_(sum);
      const at::Tensor chosen = logits.gather(1, its.clamp_min(0).unsqueeze(1)).squeeze(1);
      loss += (sum - chosen).masked_fill(its.eq(ignore_index), 0).sum();
    });
    const at::Tensor factor =
        sums ? at::ones({}, log_sums.options()) : labels.ne(ignore_index).sum().to(at::kFloat).reciprocal();
    context->save_for_backward({x, labels, weight, bias.value_or(at::Tensor()), log_sums, factor});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return loss * factor;
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    if (c10::GradMode::is_enabled())
      throw UserError(
          "linear_cross_entropy() cannot be differentiated twice (create_graph): use cross_entropy()");
    const auto capsule = context->saved_data["call"].toCapsule();
    const Call& call = static_cast<const Call&>(*capsule);
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &labels = saved[1], &weight = saved[2], &bias = saved[3],
                     &log_sums = saved[4];
    const at::Tensor factor = gradients[0] * saved[5];
    const AutocastScope autocast(call.autocast);
    const auto fp32 = x.options().dtype(at::kFloat);
    at::Tensor of_x = at::empty_like(x), of_weight, of_bias;
    if (call.trains_weight) of_weight = at::zeros(weight.sizes(), fp32);
    if (call.trains_bias) of_bias = at::zeros(bias.sizes(), fp32);
    for_each_part(x.size(0), call.options.tokens, [&](int64_t begin, int64_t count) {
      const at::Tensor its = x.narrow(0, begin, count);
      const at::Tensor of_logits =
          gradient_of_logits(logits_of(its, weight, bias), log_sums.narrow(0, begin, count),
                             labels.narrow(0, begin, count), factor, call.options.ignore_index);
      of_x.narrow(0, begin, count).copy_(of_logits.matmul(weight));
      if (call.trains_weight) of_weight += of_logits.t().matmul(its);
      if (call.trains_bias) of_bias += of_logits.sum(0, false, at::kFloat);
    });
    const auto as = [](const at::Tensor& gradient, const at::Tensor& tensor) {
      return gradient.defined() ? gradient.to(tensor.scalar_type()) : gradient;
    };
    return {at::Tensor(), of_x, at::Tensor(), as(of_weight, weight), as(of_bias, bias)};
  }
};

std::string sizes_of(const at::Tensor& tensor) {
  return c10::str(tensor.sizes());
}

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
           const std::optional<at::Tensor>& bias) {
  const bool fits = x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
                    labels.sizes() == x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)) &&
                    labels.scalar_type() == at::kLong;
  if (!fits) {
    throw UserError(
        "linear_cross_entropy(): expected x of sizes (..., hidden), weight (vocab, hidden) and labels (...) "
        "of int64, found " +
        sizes_of(x) + ", " + sizes_of(weight) + " and " + sizes_of(labels) + " of " +
        c10::toString(labels.scalar_type()));
  }
  if (bias && bias->defined() && (bias->dim() != 1 || bias->size(0) != weight.size(0)))
    throw UserError("linear_cross_entropy(): expected a bias of sizes [" + std::to_string(weight.size(0)) +
                    "], found " + sizes_of(*bias));
  const StorageOwner* owner = owner_of(weight);
  if (owner && owner->rule) {
    throw UserError(
        "linear_cross_entropy() with a weight that tensor ranks split: call vocab_parallel_cross_entropy(), "
        "or leave the layer out of the tensor plan");
  }
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                const std::optional<at::Tensor>& bias,
                                const LinearCrossEntropyOptions& options) {
  check(x, weight, labels, bias);
  auto call = c10::make_intrusive<Call>();
  call->options = options;
  if (options.tokens <= 0)
    call->options.tokens = std::max<int64_t>(kBytesOfLogits / 4 / std::max<int64_t>(weight.size(0), 1), 1);
  call->trains_weight = weight.requires_grad();
  call->trains_bias = bias && bias->defined() && bias->requires_grad();
  const std::optional<at::Tensor> given = bias && bias->defined() ? bias : std::nullopt;
  return LinearCrossEntropy::apply(call, x.reshape({-1, x.size(-1)}), labels.reshape({-1}), weight, given);
}

}  // namespace zerorun
