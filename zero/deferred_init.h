// Builds a model that is too large for any single rank. While a DeferredInit lives, tensors that are
// created in its thread get no memory, and the operators that compute their values are recorded. The recorded
// operators run when the values are requested, one storage at a time, and give the same bits as plain
// construction. The user owns the scope; one thread builds the model and makes the values. Unsupported
// operations throw a UserError, or a LibTorch error if memory is read without an operator; the message says
// what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "zero/interception.h"

namespace zerorun {

class DeferredRecorder;

/// Operators on deferred tensors are also recorded after the scope has ended: model->apply(init),
/// model->to(dtype). Some tensors made inside the scope are not deferred: torch::tensor(3),
/// torch::randperm(n), results computed from plain tensors alone, and everything made under an
/// InterceptionPause.
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

/// Whether the tensor is deferred: it has no memory for its values.
bool is_deferred(const at::Tensor& tensor);

/// Writes the values of a deferred tensor to `place`, a CPU tensor with memory and the same sizes, strides
/// and dtype. The tensor stays deferred. Allocates memory only for intermediate results.
void make_values(const at::Tensor& deferred, at::Tensor& place);

/// Returns the values of a deferred tensor in a new plain tensor of the same sizes and strides.
at::Tensor make_tensor(const at::Tensor& deferred);

}  // namespace zerorun
