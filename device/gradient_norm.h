// The norm of gradients that are sharded over ranks. Pure functions on memory, any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

namespace zerorun {

/// Sum of squares of `numel` values of `dtype`, in float64. Infinite or NaN exactly when some value is:
/// float32 squares cannot overflow float64. The same bits on every machine: it adds sixteen fixed partial
/// sums, whatever the vector width; 16-bit values give the same bits as the same values in float32.
double sum_of_squares(const void* values, Dtype dtype, int64_t numel, Simd simd = widest_simd());

}  // namespace zerorun
