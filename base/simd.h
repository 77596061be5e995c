// The instruction sets that kernels are compiled for, and the one this processor gets. A kernel is one body,
// compiled once for each set, without fused multiply-add: all give the same bits. Kernels take the set as
// their last argument so that tests can compare them. Any thread.
#pragma once

#include <cstdint>
#include <span>

namespace zerorun {

/// Each one has all that those before it have. avx2: AVX2 and F16C; avx512: AVX-512 F, BW, DQ and VL.
enum class Simd : uint8_t { portable, avx2, avx512 };

constexpr const char* name_of(Simd simd) {
  return simd == Simd::portable ? "portable" : simd == Simd::avx2 ? "avx2" : "avx512";
}

/// Those that this processor has, the best one last.
std::span<const Simd> available_simds();

/// The best that this processor has.
Simd widest_simd();

}  // namespace zerorun

/// Before a function that is compiled for Simd::avx2. What it calls must be [[gnu::always_inline]].
#if defined(__x86_64__)
#define ZERORUN_AVX2 [[gnu::target("avx2,f16c")]]
#ifdef __clang__  // version 14 drops the whole attribute for a width that it does not know
#define ZERORUN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]]
#else
#define ZERORUN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")]]
#endif
#else
#define ZERORUN_AVX2
#define ZERORUN_AVX512
#endif
