#include "plan/model_on_meta.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "engine/has_engine.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

// The tensor's node of autograd, if one is left, is that of a tensor on another device.
void forget_accumulator(const at::Tensor& tensor) {
  torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta) return;
  const std::lock_guard lock(meta->mutex_);
  meta->grad_accumulator_.reset();
}

// On the same memory, without its gradient.
c10::intrusive_ptr<c10::TensorImpl> copy_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
}

}  // namespace

ModelOnMeta::ModelOnMeta(const Model& model) {
  const InterceptionPause plain;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<at::Tensor> metas;
  for (const auto* named : {&model.parameters, &model.buffers, &model.unsaved_buffers}) {
    for (const auto& [name, tensor] : *named) {
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (has_engine(tensor))
        throw UserError(name + " belongs to an engine: plan a training before initialize(), or with a copy");
      metas.push_back(at::empty_strided(tensor.sizes(), tensor.strides(),
                                        at::dtype(tensor.scalar_type()).device(at::kMeta)));
      lent_.push_back({.tensor = tensor, .before = copy_of(tensor), .gradient = tensor.grad()});
    }
  }
  for (size_t index = 0; index < lent_.size(); ++index) {
    lent_[index].tensor.unsafeGetTensorImpl()->shallow_copy_from(metas[index].getIntrusivePtr());
    forget_accumulator(lent_[index].tensor);
    if (lent_[index].gradient.defined()) lent_[index].tensor.mutable_grad() = at::Tensor();
  }
}

ModelOnMeta::~ModelOnMeta() {
  for (Lent& each : lent_) {
    each.tensor.unsafeGetTensorImpl()->shallow_copy_from(each.before);
    forget_accumulator(each.tensor);
    if (each.gradient.defined()) each.tensor.mutable_grad() = std::move(each.gradient);
  }
}

}  // namespace zerorun
