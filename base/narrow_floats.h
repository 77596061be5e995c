// bf16 and fp16 in memory, to fp32 and back, as fast as memory. For blocks that stay in the first-level cache
// between the conversion and what is done with them. Pure functions, any thread; the instruction set is
// chosen at run time and changes no bit.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

namespace zerorun {

/// How many values are converted at a time, so that they stay in the first-level cache until they are used.
inline constexpr int64_t kConversionBlock = 1024;

/// to[i] = from[i], exactly. `from`: `numel` values of `dtype`; fp32 is copied.
void widen(const void* from, Dtype dtype, float* to, int64_t numel, Simd simd = widest_simd());

/// to[i] = from[i], rounded to nearest, ties to even (IEEE 754): what is too large becomes infinite, NaN
/// stays NaN. `to`: `numel` values of `dtype`; fp32 is copied.
void narrow(const float* from, void* to, Dtype dtype, int64_t numel, Simd simd = widest_simd());

}  // namespace zerorun
