#include "tensor_parallel/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLabel = "the cross entropy of split logits";

// The largest logit of each row, over all ranks.
at::Tensor largest(const at::Tensor& logits, const TensorGroup& group) {
  const at::Tensor own = logits.amax(-1);
  const at::Tensor all = at::empty({group.size() * own.numel()}, own.options());
  group.communicator().all_gather(all, own, kLabel)->wait();
  return all.view({group.size(), -1}).amax(0);
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const at::Tensor& targets,
                            Range own, const TensorGroupPtr& group, int64_t ignored) {
    const at::Tensor logits = part.to(at::kFloat);
    const at::Tensor shifted = logits - largest(logits, *group).unsqueeze(-1);
    const at::Tensor counts = targets.ne(ignored);
    const at::Tensor local = targets - own.begin;
    const at::Tensor is_own = local.ge(0).logical_and_(local.lt(own.numel)).logical_and_(counts);
    const at::Tensor index = local.masked_fill(is_own.logical_not(), 0).unsqueeze(-1);
    const at::Tensor exponentials = shifted.exp();
    const at::Tensor target = shifted.gather(-1, index).squeeze(-1).masked_fill(is_own.logical_not(), 0);
    const at::Tensor sums = at::stack({exponentials.sum(-1), target, is_own.to(at::kFloat)}).contiguous();
    group->communicator().all_reduce(sums.view({-1}), kLabel)->wait();
    const at::Tensor tokens = counts.sum().to(at::kFloat);
    // A target that no rank has would count as one with logit 0.
    const at::Tensor outside = counts.logical_and(sums[2].eq(0));
    const at::Tensor losses = (sums[0].log() - sums[1])
                                  .masked_fill(outside, std::numeric_limits<float>::quiet_NaN())
                                  .masked_fill(counts.logical_not(), 0);
    context->save_for_backward({exponentials / sums[0].unsqueeze(-1), index, is_own, counts, tokens});
    context->saved_data["dtype"] = part.scalar_type();
    return losses.sum() / tokens;
  }
  // softmax - 1 at the target
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (at::GradMode::is_enabled() && gradients[0].requires_grad())
      throw UserError("split_cross_entropy() has no second derivatives: gather the logits for them");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &softmax = saved[0], &index = saved[1], &is_own = saved[2], &counts = saved[3],
                     &tokens = saved[4];
    at::Tensor gradient = softmax.scatter_add(-1, index, -is_own.to(at::kFloat).unsqueeze(-1));
    gradient = gradient * (counts * (gradients[0] / tokens)).unsqueeze(-1);
    const auto dtype = context->saved_data["dtype"].toScalarType();
    return {gradient.to(dtype), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor split_cross_entropy(const at::Tensor& part, const at::Tensor& targets, const Split& split,
                               const TensorGroupPtr& group, int64_t ignored) {
  const auto& ranges = split.parts[static_cast<size_t>(group->rank())];
  ZR_CHECK(ranges.size() == 1, "a vocabulary in several blocks");
  if (part.dim() != 2 || targets.dim() != 1 || part.size(0) != targets.size(0) ||
      part.size(1) != ranges.front().numel) {
    throw UserError(c10::str("split_cross_entropy(): expected logits (N, ", ranges.front().numel,
                             ") and targets (N), found ", part.sizes(), " and ", targets.sizes()));
  }
  return CrossEntropy::apply(part, targets, ranges.front(), group, ignored);
}

}  // namespace zerorun
