// Converts between Dtype and LibTorch's scalar types. Pure, any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace zerorun {

inline at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::fp32 ? at::kFloat : dtype == Dtype::bf16 ? at::kBFloat16 : at::kHalf;
}

/// The dtype of a float32, bfloat16 or float16 tensor.
inline Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Dtype::fp32;
    case at::kBFloat16:
      return Dtype::bf16;
    default:
      ZR_CHECK(tensor.scalar_type() == at::kHalf, c10::toString(tensor.scalar_type()));
      return Dtype::fp16;
  }
}

}  // namespace zerorun
