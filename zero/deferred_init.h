// Builds a model that does not fit on any single rank. While a DeferredInit lives, tensors that its thread
// makes get no memory: the operators that compute their values are recorded, and run when the values are
// needed, one storage at a time, with the bits of plain construction. The user owns the scope; one thread
// builds the model and makes its values. Unsupported operations throw a UserError (or a LibTorch error, if
// memory is read without an operator) with the remedy.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "zero/interception.h"

namespace zerorun {

class DeferredRecorder;

/// Operators on its tensors are recorded after the scope too: model->apply(init), model->to(dtype). Inside
/// the scope these tensors are plain: torch::tensor(3), torch::randperm(n), results computed from plain
/// tensors only, and all tensors made under an InterceptionPause.
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  std::shared_ptr<DeferredRecorder> recorder_;
  RecordingScope scope_;
};

/// Whether the tensor has no values yet.
bool is_deferred(const at::Tensor& tensor);

/// Writes the values of a deferred tensor to `place`, which has memory, the same sizes, strides and dtype.
/// The tensor stays deferred. Takes memory only for intermediate results.
void make_values(const at::Tensor& deferred, at::Tensor& place);

/// A new plain tensor with the values of a deferred one, of the same sizes and strides.
at::Tensor make_tensor(const at::Tensor& deferred);

}  // namespace zerorun
