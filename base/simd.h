// The instruction sets that kernels are compiled for, and the one this processor gets. A kernel is one body,
// compiled once for each set, without fused multiply-add: all give the same bits. Kernels take the set as
// their last argument so that tests can compare them. Any thread.
#pragma once

#include <cstdint>

namespace zerorun {

enum class Simd : uint8_t { portable, avx2 };

/// The best that this processor has; avx2 means AVX2 and F16C.
Simd widest_simd();

}  // namespace zerorun

/// Before a function that is compiled for Simd::avx2. What it calls must be [[gnu::always_inline]].
#if defined(__x86_64__)
#define ZERORUN_AVX2 [[gnu::target("avx2,f16c")]]
#else
#define ZERORUN_AVX2
#endif
