// The memory addresses of an update's tensors. Pure, any thread.
#pragma once

#include "base/error.h"
#include "device/device.h"
#include "device/dtypes.h"
#include "device/update_kernels.h"

namespace zerorun {

inline UpdateSpan span_of(const UpdateTensors& tensors) {
  auto memory = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
  };
  const auto same_dtype = [&](const at::Tensor& moment) {
    return !moment.defined() || moment.scalar_type() == tensors.first.scalar_type();
  };
  ZR_CHECK(same_dtype(tensors.second) && same_dtype(tensors.third), "moments of two dtypes");
  return {.numel = tensors.values.numel(),
          .gradient = tensors.gradient.const_data_ptr(),
          .gradient_dtype = dtype_of(tensors.gradient),
          .values = memory(tensors.values),
          .first = memory(tensors.first),
          .second = memory(tensors.second),
          .third = memory(tensors.third),
          .rounded = memory(tensors.rounded),
          .rounded_dtype = tensors.rounded.defined() ? dtype_of(tensors.rounded) : Dtype::bf16,
          .values_dtype = dtype_of(tensors.values),
          .moments_dtype =
              tensors.first.defined() && !tensors.has_codes() ? dtype_of(tensors.first) : Dtype::fp32,
          .rounding = tensors.rounding,
          .first_scales = static_cast<float*>(memory(tensors.first_scales)),
          .second_scales = static_cast<float*>(memory(tensors.second_scales))};
}

}  // namespace zerorun
