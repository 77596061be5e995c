// Converts bf16 and fp16 in memory to fp32 and back, as fast as memory is read and written. Meant for blocks
// that stay in the first-level cache until they are used. Pure functions, any thread. The instruction set is
// chosen at run time; all instruction sets give the same bits.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

namespace zerorun {

/// The number of values to convert at a time, so that they are still in the first-level cache when used.
inline constexpr int64_t kConversionBlock = 1024;

/// to[i] = from[i], exactly. `from`: `numel` values of `dtype`; fp32 is copied.
void widen(const void* from, Dtype dtype, float* to, int64_t numel, Simd simd = widest_simd());

/// to[i] = from[i], rounded to nearest, ties to even (IEEE 754): values that are too large become infinite,
/// NaN stays NaN. `to`: `numel` values of `dtype`; fp32 is copied.
void narrow(const float* from, void* to, Dtype dtype, int64_t numel, Simd simd = widest_simd());

}  // namespace zerorun
