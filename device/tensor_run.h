// A part of a tensor's memory as a tensor, made without an operator: narrow() calls three operators of
// LibTorch, each with its dispatch and its record for a profiler, which is a large part of what the engine
// does on the host for a gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace zerorun {

/// Returns the `numel` elements of `tensor`'s memory that begin `begin` elements after its first one, as a
/// 1-D tensor that shares the memory. They are in the tensor's storage. Autograd does not know of it.
inline at::Tensor run_of(const at::Tensor& tensor, int64_t begin, int64_t numel) {
  at::Tensor run = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  c10::TensorImpl* impl = run.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset() + begin);
  impl->set_sizes_contiguous(numel);
  return run;
}

}  // namespace zerorun
