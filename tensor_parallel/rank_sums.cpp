#include "tensor_parallel/rank_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "zero/interception.h"

namespace zerorun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a node of the graph needs of its call.
struct Call : torch::CustomClassHolder {
  Call(TensorGroupPtr group, std::string label, Split split = {})
      : group(std::move(group)), label(std::move(label)), split(std::move(split)) {}

  TensorGroupPtr group;
  std::string label;
  Split split;
};
using CallPtr = c10::intrusive_ptr<Call>;

void keep(AutogradContext* context, const CallPtr& call) {
  context->saved_data["call"] = c10::IValue::make_capsule(call);
}

CallPtr kept(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
}

void sum_in_place(const at::Tensor& contiguous, const Call& call) {
  call.group->communicator().all_reduce(contiguous.view({-1}), call.label)->wait();
}

struct ToRanks : torch::autograd::Function<ToRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole, const CallPtr& call) {
    keep(context, call);
    return whole.view_as(whole);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const CallPtr call = kept(context);
    // Others may use the gradient too, so the sum needs memory of its own.
    const at::Tensor own = gradients[0].clone(at::MemoryFormat::Contiguous);
    return {sum_over_ranks(own, call->group, call->label), at::Tensor()};
  }
};

struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& summand, const CallPtr& call) {
    keep(context, call);
    context->mark_dirty({summand});
    sum_in_place(summand, *call);
    return summand;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const CallPtr call = kept(context);
    return {to_ranks(gradients[0], call->group, call->label), at::Tensor()};
  }
};

at::Tensor gather(const at::Tensor& part, const Call& call) {
  const Split& split = call.split;
  const int ranks = call.group->size();
  std::vector<int64_t> sizes = part.sizes().vec();
  const int64_t rows = part.numel() / std::max<int64_t>(sizes.back(), 1);
  const int64_t width = split.largest_part();
  // The communicator needs memory at an address, which a parameter has only while an operator uses it.
  const at::Tensor plain = owner_of(part) ? part.clone(at::MemoryFormat::Contiguous) : part.contiguous();
  at::Tensor own = plain.view({rows, sizes.back()});
  if (sizes.back() < width) {  // slices of a gather have one size
    const at::Tensor padded = at::zeros({rows, width}, own.options());
    padded.narrow(1, 0, sizes.back()).copy_(own);
    own = padded;
  }
  const at::Tensor all = at::empty({ranks * rows * width}, own.options());
  call.group->communicator().all_gather(all, own.view({-1}), call.label)->wait();
  sizes.back() = split.whole;
  const at::Tensor result = at::empty(sizes, own.options());  // no view: programs write to it in place
  const at::Tensor whole = result.view({rows, split.whole});
  Split by_columns = split;
  by_columns.dim = 1;
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor of_rank = all.narrow(0, rank * rows * width, rows * width).view({rows, width});
    copy_to_whole(whole, of_rank, by_columns, rank);
  }
  return result;
}

// This rank's part of a tensor that all ranks have whole.
struct OwnPart : torch::autograd::Function<OwnPart> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole, const CallPtr& call) {
    keep(context, call);
    Split by_columns = call->split;
    by_columns.dim = whole.dim() - 1;
    return part_of(whole, by_columns, *call->group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const CallPtr call = kept(context);
    return {gather_over_ranks(gradients[0], call->split, call->group, call->label), at::Tensor()};
  }
};

struct GatherOverRanks : torch::autograd::Function<GatherOverRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const CallPtr& call) {
    keep(context, call);
    return gather(part, *call);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {OwnPart::apply(gradients[0], kept(context)), at::Tensor()};
  }
};

bool is_recorded(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

}  // namespace

at::Tensor to_ranks(const at::Tensor& whole, const TensorGroupPtr& group, const std::string& label) {
  if (!is_recorded(whole)) return whole;
  return ToRanks::apply(whole, c10::make_intrusive<Call>(group, label));
}

at::Tensor sum_over_ranks(const at::Tensor& summand, const TensorGroupPtr& group, const std::string& label) {
  return SumOverRanks::apply(summand.contiguous(), c10::make_intrusive<Call>(group, label));
}

at::Tensor gather_over_ranks(const at::Tensor& part, const Split& split, const TensorGroupPtr& group,
                             const std::string& label) {
  return GatherOverRanks::apply(part, c10::make_intrusive<Call>(group, label, split));
}

at::Tensor whole_of(const at::Tensor& part, const Split& split, const TensorGroupPtr& group,
                    const std::string& label) {
  const Call call(group, label, split);
  return gather(part.movedim(split.dim, -1), call).movedim(-1, split.dim).contiguous();
}

at::Tensor part_of(const at::Tensor& whole, const Split& split, const TensorGroup& group) {
  at::Tensor part = at::empty(sizes_of_part(whole.sizes(), split, group.rank()), whole.options());
  copy_part(part, whole, split, group.rank());
  return part;
}

}  // namespace zerorun
