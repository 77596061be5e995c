// Building a model that fits on no single rank. While a DeferredInit lives, tensors that its thread makes get
// no memory: the operators that make their values are taken down, and run when the values are asked for, one
// storage at a time, with the bits of plain construction. The user owns the scope; one thread builds and
// makes values. The limits are in refusals: each is a UserError, or a LibTorch error where memory is read
// without an operator, that says what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "zero/interception.h"

namespace zerorun {

class DeferredRecorder;

/// Operators on its tensors are taken down after the scope too: model->apply(init), model->to(dtype). Plain
/// inside it are torch::tensor(3), torch::randperm(n), what is computed from plain tensors alone, and all
/// that is made under an InterceptionPause.
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

/// Whether the tensor's values are still to be made.
bool is_deferred(const at::Tensor& tensor);

/// Writes the values of a deferred tensor to `place`, which has memory, the same sizes, strides and dtype.
/// The tensor stays deferred. Takes memory only for what its computation needs besides.
void make_values(const at::Tensor& deferred, at::Tensor& place);

/// The values of a deferred tensor in a new plain one, of the same sizes and strides.
at::Tensor make_tensor(const at::Tensor& deferred);

}  // namespace zerorun
