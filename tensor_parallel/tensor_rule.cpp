#include "tensor_parallel/tensor_rule.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps autograd from taking a tensor for an input.
struct Held {
  at::Tensor tensor;
};

// `other` in place of a tensor of the same sizes.
struct InPlaceOf : torch::autograd::Function<InPlaceOf> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& /*replaced*/, const Held& other) {
    return other.tensor;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor in_place_of(const at::Tensor& replaced, const at::Tensor& other) {
  if (!at::GradMode::is_enabled() || !replaced.requires_grad()) return other;
  return InPlaceOf::apply(replaced, Held{other});
}

// The owner of the storage of a copy, which is deleted with it.
struct CopyOwner final : StorageOwner {
  CopyOwner(std::shared_ptr<TensorRule> copied_by, const SplitTensor& original, const at::Tensor& copy)
      : rule_alive(std::move(copied_by)),
        name(*original.name),
        split(original.split),
        plain(copy),
        dim(original.dim) {
    rule = rule_alive.get();
    storage_gone = [](StorageOwner* owner) { delete static_cast<CopyOwner*>(owner); };
  }

  std::shared_ptr<TensorRule> rule_alive;
  std::string name;
  std::shared_ptr<const Split> split;
  at::Tensor plain;  // on the same memory
  int64_t dim;
};

int64_t find_dim(const at::Tensor& view, int64_t size, int64_t stride, const std::string& name) {
  int64_t found = -1;
  for (int64_t dim = 0; dim < view.dim(); ++dim) {
    if (view.size(dim) != size || view.stride(dim) != stride) continue;
    if (found >= 0) {
      found = -1;
      break;
    }
    found = dim;
  }
  if (found >= 0) return found;
  throw UserError("a view of sizes " + c10::str(view.sizes()) + " of parameter " + name +
                  ", which is split among tensor ranks: it is unclear which of its dimensions is the split "
                  "one. Views may permute dimensions, and cut or merge those that are not split");
}

}  // namespace

at::Tensor SplitTensor::local() const {
  StorageOwner* owner = owner_of(tensor);
  if (const auto* copied = dynamic_cast<const CopyOwner*>(owner)) {
    const at::Tensor plain =
        copied->plain.detach().as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return in_place_of(tensor, plain);
  }
  return in_place_of(tensor, static_cast<const TensorRule*>(owner->rule)->local_view(tensor));
}

TensorRule::TensorRule(const Mesh& mesh, const Buckets& buckets)
    : buckets_(&buckets), group_(std::make_shared<TensorGroup>(mesh)) {
  intercept_for_rules();
}

at::Tensor TensorRule::local_view(const at::Tensor& tensor) const {
  return buckets_->local_view(tensor);
}

std::optional<SplitTensor> TensorRule::find(const at::Tensor& tensor) {
  StorageOwner* owner = owner_of(tensor);
  if (!owner || !owner->rule) return {};
  if (owner->rule != this)
    throw UserError("an operator uses split parameters of two engines, whose tensor groups may differ");
  if (const auto* copied = dynamic_cast<const CopyOwner*>(owner)) {
    const int64_t dim =
        find_dim(tensor, copied->plain.size(copied->dim), copied->plain.stride(copied->dim), copied->name);
    return SplitTensor{tensor, &copied->name, copied->split, dim};
  }
  const int parameter = buckets_->parameter_of(tensor);
  const NamedParameter& named = buckets_->parameters()[parameter];
  const int64_t dim = named.split->dim;
  return SplitTensor{
      tensor, &named.name, named.split,
      find_dim(tensor, buckets_->sizes(parameter)[dim], buckets_->strides(parameter)[dim], named.name)};
}

at::Tensor TensorRule::marked_copy(const at::Tensor& plain, const SplitTensor& original) {
  const at::Tensor detached = plain.detach();
  const auto nbytes = static_cast<int64_t>(detached.storage().nbytes());
  auto* owner = new CopyOwner(shared_from_this(), original, detached);
  const c10::Storage storage = make_owned_storage(*owner, nbytes, detached.device(), "");
  give_memory(storage, detached.storage().mutable_data());
  return in_place_of(plain, marked_view(storage, detached.scalar_type(), detached.sizes(), detached.strides(),
                                        detached.storage_offset()));
}

void TensorRule::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  SplitOperator(*this, op, stack).run();
}

}  // namespace zerorun
