// The memory addresses of an update's tensors. Pure, any thread.
#pragma once

#include "device/device.h"
#include "device/dtypes.h"
#include "device/update_kernels.h"

namespace zerorun {

inline UpdateSpan span_of(const UpdateTensors& tensors) {
  auto floats = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
  };
  const bool rounds = tensors.rounded.defined();
  return {.numel = tensors.values.numel(),
          .gradient = tensors.gradient.const_data_ptr(),
          .gradient_dtype = dtype_of(tensors.gradient),
          .values = floats(tensors.values),
          .first = floats(tensors.first),
          .second = floats(tensors.second),
          .third = floats(tensors.third),
          .rounded = rounds ? tensors.rounded.mutable_data_ptr() : nullptr,
          .rounded_dtype = rounds ? dtype_of(tensors.rounded) : Dtype::bf16};
}

}  // namespace zerorun
