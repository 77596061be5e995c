// The operators that have a meaning for split parameters.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <torch/csrc/autograd/edge.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "tensor_parallel/tensor_rule.h"
#include "zero/node_pointer.h"

namespace zerorun {
namespace {

// The node of to_ranks(x) of the last x, which the products of one x (query, key and value) share, so that
// their gradients are summed over ranks once. Keeps neither x nor the node alive: the graph of the first
// product does.
struct LastEntered {
  c10::weak_intrusive_ptr<c10::TensorImpl> whole{c10::intrusive_ptr<c10::TensorImpl>()};
  WeakNodePointer node{NodePointer()};
  uint32_t version = 0;
  const TensorGroup* group = nullptr;
};
thread_local LastEntered last_entered;

constexpr const char* kRemedy = "Use its module in forward only, or leave it whole in the tensor plan";

}  // namespace

SplitOperator::SplitOperator(TensorRule& rule, const c10::OperatorHandle& op, torch::jit::Stack* stack)
    : rule_(rule), op_(op), stack_(stack) {}

SplitOperator::Method SplitOperator::method_of(const std::string& name) {
  static const std::map<std::string, Method> methods = [] {
    std::map<std::string, Method> all = {
        {"aten::linear", &SplitOperator::linear},       {"aten::addmm", &SplitOperator::addmm},
        {"aten::embedding", &SplitOperator::embedding}, {"aten::add", &SplitOperator::add_bias},
        {"aten::slice", &SplitOperator::slice},         {"aten::_to_copy", &SplitOperator::copy},
        {"aten::clone", &SplitOperator::copy}};
    for (const char* product : {"matmul", "mm", "bmm", "mv"})
      all.emplace(std::string("aten::") + product, &SplitOperator::product);
    for (const char* in_place : {"add_", "sub_", "mul_", "div_", "copy_", "zero_", "fill_"})
      all.emplace(std::string("aten::") + in_place, &SplitOperator::write_in_place);
    return all;
  }();
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

// Not a form with `out` or with an argument more, which the methods would leave out.
bool SplitOperator::is_known_form() const {
  const c10::OperatorName& name = op_.operator_name();
  const std::string& form = name.overload_name;
  if (op_.schema().is_mutable() && !name.name.ends_with("_")) return false;
  return form.empty() || form == "Tensor" || (form == "Scalar" && name.name.ends_with("_"));
}

void SplitOperator::run() {
  const Method method = method_of(op_.operator_name().name);
  if (method && is_known_form()) return (this->*method)();
  const auto arguments = torch::jit::last(*stack_, op_.schema().arguments().size());
  auto refuse_split = [&](const at::Tensor& tensor) {
    if (const auto split = rule_.find(tensor)) refuse(*split, "has no meaning for a part of a parameter");
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) refuse_split(argument.toTensor());
    if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) refuse_split(tensor);
    }
  }
  throw InternalError("no argument of " + op_.operator_name().name + " is split");
}

void SplitOperator::refuse(const SplitTensor& split, const std::string& reason) const {
  throw UserError("operator " + op_.operator_name().name + " on parameter " + *split.name +
                  ", which is split among tensor ranks, " + reason + ". " + kRemedy);
}

at::Tensor SplitOperator::argument(size_t index) const {
  const c10::IValue& value = torch::jit::peek(*stack_, index, op_.schema().arguments().size());
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

void SplitOperator::give(at::Tensor result) {
  torch::jit::drop(*stack_, op_.schema().arguments().size());
  torch::jit::push(*stack_, std::move(result));
}

at::Tensor SplitOperator::enter(const at::Tensor& whole, const SplitTensor& weight) {
  if (!at::GradMode::is_enabled() || !whole.requires_grad()) return whole;
  const uint32_t version = whole.unsafeGetTensorImpl()->version_counter().current_version();
  LastEntered& last = last_entered;
  if (last.group == rule_.group().get() && last.version == version &&
      last.whole.lock().get() == whole.unsafeGetTensorImpl()) {
    if (auto node = last.node.lock()) {
      at::Tensor entered = whole.detach();
      torch::autograd::impl::set_gradient_edge(entered, torch::autograd::Edge(std::move(node), 0));
      return entered;
    }
  }
  at::Tensor entered = to_ranks(whole, rule_.group(), "the gradient of the input of " + *weight.name);
  last.whole = c10::weak_intrusive_ptr<c10::TensorImpl>(whole.getIntrusivePtr());
  last.node = WeakNodePointer(entered.grad_fn());
  last.version = version;
  last.group = rule_.group().get();
  return entered;
}

at::Tensor SplitOperator::sum(const at::Tensor& summand, const SplitTensor& weight) {
  return sum_over_ranks(summand, rule_.group(), "the results of " + *weight.name);
}

// A result that is split as `weight` is, along its last dimension.
at::Tensor SplitOperator::leave(const at::Tensor& result, const SplitTensor& weight) {
  if (!weight.split->gathers) return result;
  return gather_over_ranks(result, *weight.split, rule_.group(), "the results of " + *weight.name);
}

at::Tensor SplitOperator::multiply(const at::Tensor& left, const at::Tensor& right) {
  const auto split_left = rule_.find(left), split_right = rule_.find(right);
  const SplitTensor& weight = split_left ? *split_left : *split_right;
  if (split_left && split_right) refuse(weight, "has another split parameter as its other argument");
  const int64_t dim = weight.dim_from_end();
  const bool is_vector = weight.tensor.dim() == 1;
  const bool sums = is_vector || dim == (split_left ? -1 : -2);
  if (!sums && dim < -2) refuse(weight, "is a batch of products, and the batches are split");
  const at::Tensor local = weight.local();
  if (sums) return sum(split_left ? at::matmul(local, right) : at::matmul(left, local), weight);
  if (split_left) {
    const at::Tensor result = at::matmul(local, enter(right, weight));
    if (!weight.split->gathers) return result;
    // The rows of the result are split.
    return right.dim() == 1 ? leave(result, weight)
                            : leave(result.transpose(-1, -2), weight).transpose(-1, -2);
  }
  return leave(at::matmul(enter(left, weight), local), weight);
}

void SplitOperator::product() {
  give(multiply(argument(0), argument(1)));
}

void SplitOperator::linear() {
  const at::Tensor input = argument(0), bias = argument(2);
  const auto weight = split_argument(1);
  const auto split_bias = rule_.find(bias);
  if (!weight) refuse(split_bias ? *split_bias : *rule_.find(input), "has a whole weight");
  if (rule_.find(input)) refuse(*weight, "has a split parameter as its input");
  if (weight->dim_from_end() == -1) {
    if (split_bias)
      refuse(*split_bias, "is a bias of results that are summed, which is added once and whole");
    const at::Tensor result = sum(at::linear(input, weight->local()), *weight);
    return give(bias.defined() ? at::add(result, bias.to(result.scalar_type())) : result);
  }
  if (bias.defined() && !(split_bias && split_bias->split->cuts_like(*weight->split)))
    refuse(*weight, "has a bias that is not split like the weight");
  const std::optional<at::Tensor> local_bias = split_bias ? std::optional(split_bias->local()) : std::nullopt;
  give(leave(at::linear(enter(input, *weight), weight->local(), local_bias), *weight));
}

// beta * bias + alpha * left x right
void SplitOperator::addmm() {
  const at::Tensor bias = argument(0), left = argument(1);
  const auto split_bias = rule_.find(bias), weight = split_argument(2);
  const auto& arguments = torch::jit::last(*stack_, 5);
  const at::Scalar beta = arguments[3].toScalar(), alpha = arguments[4].toScalar();
  if (!weight || rule_.find(left)) {
    if (split_bias) refuse(*split_bias, "has a whole second matrix");
    return give(at::add(at::mul(multiply(left, argument(2)), alpha), bias, beta));
  }
  if (weight->dim_from_end() == -2) {
    if (split_bias)
      refuse(*split_bias, "is a bias of results that are summed, which is added once and whole");
    const at::Tensor result = sum(at::mm(left, weight->local()), *weight);
    const bool plain = alpha.equal(1);
    return give(at::add(plain ? result : at::mul(result, alpha), bias.to(result.scalar_type()), beta));
  }
  if (!split_bias || !split_bias->split->cuts_like(*weight->split))
    refuse(*weight, "has a bias that is not split like the weight");
  give(leave(at::addmm(split_bias->local(), enter(left, *weight), weight->local(), beta, alpha), *weight));
}

// Rows of other ranks are zero, and the sum over ranks has all rows.
void SplitOperator::embedding() {
  const auto weight = split_argument(0);
  const at::Tensor indices = argument(1);
  if (!weight || weight->dim != 0)
    refuse(weight ? *weight : *rule_.find(indices), "is split along its width");
  const auto& parts = weight->split->parts[static_cast<size_t>(rule_.group()->rank())];
  if (parts.size() != 1) refuse(*weight, "has its rows in several blocks");
  const auto& arguments = torch::jit::last(*stack_, 5);
  if (arguments[3].toBool())
    refuse(*weight, "counts indices (scale_grad_by_freq), each of which one rank has");
  const auto [begin, rows] = parts.front();
  const int64_t padding = arguments[2].toInt();
  const bool has_padding = padding >= begin && padding < begin + rows;
  const at::Tensor own = at::sub(indices, begin);
  const at::Tensor is_own = own.ge(0).logical_and_(own.lt(rows));
  // An index outside of the vocabulary stays one on the first or the last rank, which reports it.
  const bool is_last = begin + rows == weight->split->whole;
  at::Tensor row = begin > 0 ? own.clamp_min(0) : own;
  if (!is_last) row = row.clamp_max(rows - 1);
  at::Tensor result = at::embedding(weight->local(), row, has_padding ? padding - begin : -1,
                                    arguments[3].toBool(), arguments[4].toBool());
  result = result.masked_fill(is_own.logical_not().unsqueeze(-1), 0);
  give(sum(result, *weight));
}

// x + bias, whose last dimension is split.
void SplitOperator::add_bias() {
  auto arguments = torch::jit::last(*stack_, op_.schema().arguments().size());
  at::Tensor others[2] = {argument(0), argument(1)};
  for (int index = 0; index < 2; ++index) {
    const auto bias = rule_.find(others[index]);
    if (!bias) continue;
    const at::Tensor& other = others[1 - index];
    if (bias->tensor.dim() != 1 || rule_.find(other) || !other.defined()) {
      refuse(*bias, "is a sum with something else than a result that is split like it");
    }
    others[index] = leave(bias->local(), *bias);
    if (other.dim() == 0 || other.size(-1) != others[index].size(0)) {
      refuse(*bias, "adds " + std::to_string(others[index].size(0)) + " elements to a tensor of sizes " +
                        c10::str(other.sizes()));
    }
  }
  give(at::add(others[0], others[1], arguments[2].toScalar()));
}

void SplitOperator::copy() {
  const auto original = split_argument(0);
  if (!original) throw InternalError("a copy of a split tensor without one");
  torch::jit::peek(*stack_, 0, op_.schema().arguments().size()) = original->local();
  op_.callBoxed(stack_);
  const at::Tensor plain = torch::jit::pop(*stack_).toTensor();
  torch::jit::push(*stack_, rule_.marked_copy(plain, *original));
}

// A cut of the dimension that is split would be one of the part: `weight[:7]` of 10 rows has all 5 of a rank.
void SplitOperator::slice() {
  const auto original = split_argument(0);
  const auto& arguments = torch::jit::last(*stack_, 5);
  if (at::maybe_wrap_dim(arguments[1].toInt(), original->tensor.dim()) == original->dim) {
    const bool begins = arguments[2].isNone() || arguments[2].toInt() == 0;
    const bool ends = arguments[3].isNone() || arguments[3].toInt() >= original->split->whole;
    if (!begins || !ends || arguments[4].toInt() != 1) refuse(*original, "cuts the dimension that is split");
  }
  const InterceptionPause pause;  // a view, which inherits the mark
  op_.callBoxed(stack_);
}

// Writes to the part what each rank computes for it.
void SplitOperator::write_in_place() {
  const at::Tensor target = argument(0);
  const auto written = rule_.find(target);
  if (!written) {  // x += bias
    const auto bias = split_argument(1);
    if (op_.operator_name().name != "aten::add_" || !bias)
      refuse(bias ? *bias : *rule_.find(argument(1)), "writes to a tensor that is not split");
    const at::Tensor added = leave(bias->local(), *bias);
    if (bias->tensor.dim() != 1 || target.dim() == 0 || target.size(-1) != added.size(0))
      refuse(*bias, "adds it to a tensor of sizes " + c10::str(target.sizes()));
    torch::jit::peek(*stack_, 1, op_.schema().arguments().size()) = added;
    return op_.callBoxed(stack_);
  }
  if (at::GradMode::is_enabled() && target.requires_grad())
    refuse(*written, "writes to a tensor that requires grad: write under a NoGradGuard (torch.no_grad())");
  at::NoGradGuard no_grad;
  torch::jit::peek(*stack_, 0, op_.schema().arguments().size()) = written->local();
  if (op_.schema().arguments().size() > 1 && argument(1).defined()) {
    const auto other = split_argument(1);
    const at::Tensor local = other ? other->local() : argument(1);
    const bool fits = other && other->dim == written->dim && local.sizes() == target.sizes() &&
                      other->split->cuts_like(*written->split);
    if (local.dim() > 0 && !fits) refuse(*written, "takes a tensor that is not split like it");
    torch::jit::peek(*stack_, 1, op_.schema().arguments().size()) = local;
  }
  op_.callBoxed(stack_);
  torch::jit::pop(*stack_);
  torch::jit::push(*stack_, target);
}

}  // namespace zerorun
