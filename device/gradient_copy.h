// Copies or adds a gradient to a buffer in one pass over memory that converts, scales and checks for
// infinities and NaN. Pure functions, any thread. Tensors are float32, bfloat16 or float16, 1-D, contiguous,
// on the CPU, and of equal length; `to` and `from` are the same memory or do not overlap.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/simd.h"

namespace zerorun {

/// to = from * factor, computed in float32 and rounded once. Returns whether every value in `to` is finite.
bool copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor);

/// to += from * factor, computed in float32 and rounded once. Returns whether every value added was finite.
bool add_scaled(const at::Tensor& to, const at::Tensor& from, float factor);

/// copy_scaled() and add_scaled() with a given instruction set, for tests.
bool copy_scaled_on(Simd simd, const at::Tensor& to, const at::Tensor& from, float factor);
bool add_scaled_on(Simd simd, const at::Tensor& to, const at::Tensor& from, float factor);

/// The position of the first value that is infinite or NaN; -1 if there is none.
int64_t first_not_finite(const at::Tensor& values);

}  // namespace zerorun
