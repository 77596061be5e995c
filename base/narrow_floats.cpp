#include "base/narrow_floats.h"

#include <algorithm>

#include "base/narrow_loops.h"

namespace zerorun {
namespace {

using Widen = void (*)(const uint16_t* from, Dtype dtype, float* to, int64_t numel);
using Narrow = void (*)(const float* from, uint16_t* to, Dtype dtype, int64_t numel);

void widen_portable(const uint16_t* from, Dtype dtype, float* to, int64_t numel) {
  widen_in_loop<Simd::portable>(from, dtype, to, numel);
}

ZERORUN_AVX2 void widen_avx2(const uint16_t* from, Dtype dtype, float* to, int64_t numel) {
  widen_in_loop<Simd::avx2>(from, dtype, to, numel);
}

ZERORUN_AVX512 void widen_avx512(const uint16_t* from, Dtype dtype, float* to, int64_t numel) {
  widen_in_loop<Simd::avx512>(from, dtype, to, numel);
}

void narrow_portable(const float* from, uint16_t* to, Dtype dtype, int64_t numel) {
  narrow_in_loop<Simd::portable>(from, to, dtype, numel);
}

ZERORUN_AVX2 void narrow_avx2(const float* from, uint16_t* to, Dtype dtype, int64_t numel) {
  narrow_in_loop<Simd::avx2>(from, to, dtype, numel);
}

ZERORUN_AVX512 void narrow_avx512(const float* from, uint16_t* to, Dtype dtype, int64_t numel) {
  narrow_in_loop<Simd::avx512>(from, to, dtype, numel);
}

}  // namespace

void widen(const void* from, Dtype dtype, float* to, int64_t numel, Simd simd) {
  if (dtype == Dtype::fp32) {
    std::copy_n(static_cast<const float*>(from), numel, to);
    return;
  }
  constexpr Widen kOf[] = {widen_portable, widen_avx2, widen_avx512};
  kOf[static_cast<int>(simd)](static_cast<const uint16_t*>(from), dtype, to, numel);
}

void narrow(const float* from, void* to, Dtype dtype, int64_t numel, Simd simd) {
  if (dtype == Dtype::fp32) {
    std::copy_n(from, numel, static_cast<float*>(to));
    return;
  }
  constexpr Narrow kOf[] = {narrow_portable, narrow_avx2, narrow_avx512};
  kOf[static_cast<int>(simd)](from, static_cast<uint16_t*>(to), dtype, numel);
}

}  // namespace zerorun
