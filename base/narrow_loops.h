// The conversions of narrow_floats.h as inline functions, for kernels that are compiled for one instruction
// set and convert inside their own loops. Pure functions, any thread.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zerorun {

namespace narrow_loops {

inline constexpr uint32_t kInfinity = 0x7f800000;  // of float32, as bits
inline constexpr uint32_t kQuiet = 0x00400000;     // the bit that makes a float32 NaN a quiet NaN

// These functions select values with masks instead of branches, so that compilers can vectorize loops that
// call them.

[[gnu::always_inline]] inline uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0 - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

[[gnu::always_inline]] inline float widen_bf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

[[gnu::always_inline]] inline uint16_t narrow_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(choose(value != value, 0xffffffff, rounded) >> 16);
}

[[gnu::always_inline]] inline float widen_fp16(uint16_t value) {
  const uint32_t magnitude = value & 0x7fff;
  const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t special = (magnitude << 13) | kInfinity | choose(magnitude > 0x7c00, kQuiet, 0);
  const uint32_t bits = choose(magnitude < 0x0400, subnormal, choose(magnitude < 0x7c00, normal, special));
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(value & 0x8000) << 16));
}

[[gnu::always_inline]] inline uint16_t narrow_fp16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Subnormals of fp16 are multiples of 2^-24. Float32 values from 0.5 to 1 have the same spacing, so adding
  // 0.5f rounds the magnitude to such a multiple.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  // Rounding up may carry into the exponent; from the largest finite value this gives infinity, as it must.
  const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t special = choose(magnitude > kInfinity, 0x7e00 | ((magnitude >> 13) & 0x3ff), 0x7c00);
  // 0x38800000 is 2^-14, the smallest normal value of fp16; 0x47800000 is 2^16.
  const uint32_t below_2_to_the_16 = choose(magnitude < 0x38800000, subnormal, normal);
  const uint32_t rounded = choose(magnitude < 0x47800000, below_2_to_the_16, special);
  return static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000));
}

// Loops over fp16 with the processor's conversion instructions, which compilers do not generate. Each loop
// returns the number of values that it has converted. It leaves out a remainder that does not fill a
// register.

#if defined(__x86_64__)

ZERORUN_AVX2 inline int64_t widen_fp16_f16c(const uint16_t* from, float* to, int64_t numel) {
  int64_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

ZERORUN_AVX2 inline int64_t narrow_fp16_f16c(const float* from, uint16_t* to, int64_t numel) {
  int64_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to + i),
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}

// A mask that selects all values. The masked intrinsics are used because g++ 12 warns about uninitialized
// values in the unmasked ones.
inline constexpr __mmask16 kAll = 0xffff;

ZERORUN_AVX512 inline int64_t widen_fp16_avx512(const uint16_t* from, float* to, int64_t numel) {
  int64_t i = 0;
  for (; i + 16 <= numel; i += 16) {
    _mm512_storeu_ps(
        to + i, _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  return i;
}

ZERORUN_AVX512 inline int64_t narrow_fp16_avx512(const float* from, uint16_t* to, int64_t numel) {
  int64_t i = 0;
  for (; i + 16 <= numel; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(from + i),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}

#endif

}  // namespace narrow_loops

/// widen() and narrow() for a loop that is compiled for `simd`.

template <Simd simd>
[[gnu::always_inline]] inline void widen_in_loop(const uint16_t* from, Dtype dtype, float* to,
                                                 int64_t numel) {
  if (dtype == Dtype::bf16) {
    for (int64_t i = 0; i < numel; ++i) to[i] = narrow_loops::widen_bf16(from[i]);
    return;
  }
  int64_t i = 0;
#if defined(__x86_64__)
  if constexpr (simd == Simd::avx2) i = narrow_loops::widen_fp16_f16c(from, to, numel);
  if constexpr (simd == Simd::avx512) i = narrow_loops::widen_fp16_avx512(from, to, numel);
#endif
  for (; i < numel; ++i) to[i] = narrow_loops::widen_fp16(from[i]);
}

template <Simd simd>
[[gnu::always_inline]] inline void narrow_in_loop(const float* from, uint16_t* to, Dtype dtype,
                                                  int64_t numel) {
  if (dtype == Dtype::bf16) {
    for (int64_t i = 0; i < numel; ++i) to[i] = narrow_loops::narrow_bf16(from[i]);
    return;
  }
  int64_t i = 0;
#if defined(__x86_64__)
  if constexpr (simd == Simd::avx2) i = narrow_loops::narrow_fp16_f16c(from, to, numel);
  if constexpr (simd == Simd::avx512) i = narrow_loops::narrow_fp16_avx512(from, to, numel);
#endif
  for (; i < numel; ++i) to[i] = narrow_loops::narrow_fp16(from[i]);
}

}  // namespace zerorun
