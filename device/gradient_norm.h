// This rank's part of the norm of gradients: a sum of squares. Pure functions on memory, any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

namespace zerorun {

/// Returns the sum of squares of `numel` values of `dtype`, in float64. The sum is infinite or NaN if and
/// only if a value is infinite or NaN, because squares of float32 values cannot overflow float64. The bits
/// are the same on every machine, because there are always sixteen partial sums, whatever the vector width.
/// 16-bit values give the same bits as the same values in float32.
double sum_of_squares(const void* values, Dtype dtype, int64_t numel, Simd simd = widest_simd());

}  // namespace zerorun
