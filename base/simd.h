// The instruction sets that kernels are compiled for, and the one that this processor uses. A kernel is one
// function body compiled once for each set, without fused multiply-add, so all sets give the same bits.
// Kernels take the set as their last argument so that tests can compare the sets. Any thread.
#pragma once

#include <cstdint>
#include <span>

namespace zerorun {

/// Each set includes the sets before it. avx2: AVX2 and F16C; avx512: AVX-512 F, BW, DQ and VL.
enum class Simd : uint8_t { portable, avx2, avx512 };

constexpr const char* name_of(Simd simd) {
  return simd == Simd::portable ? "portable" : simd == Simd::avx2 ? "avx2" : "avx512";
}

/// The sets that this processor supports, the best one last.
std::span<const Simd> available_simds();

/// The best set that this processor supports.
Simd widest_simd();

}  // namespace zerorun

/// Put ZERORUN_AVX2 before a function that is compiled for Simd::avx2, and ZERORUN_AVX512 before one for
/// Simd::avx512. The functions that it calls must be [[gnu::always_inline]].
#if defined(__x86_64__)
#define ZERORUN_AVX2 [[gnu::target("avx2,f16c")]]
#ifdef __clang__  // clang 14 ignores the whole attribute if it has prefer-vector-width
#define ZERORUN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]]
#else
#define ZERORUN_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")]]
#endif
#else
#define ZERORUN_AVX2
#define ZERORUN_AVX512
#endif
