#include "device/gradient_norm.h"

#include <algorithm>
#include <array>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

constexpr int64_t kLanes = 16;
static_assert(kConversionBlock % kLanes == 0);  // so that every block begins at lane 0

using Lanes = std::array<double, kLanes>;

// sums[i % kLanes] += values[i]^2
[[gnu::always_inline]] inline void add_squares(const float* values, int64_t numel, Lanes& sums) {
  Lanes own = sums;
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      own[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < numel; ++i, ++lane) own[lane] += static_cast<double>(values[i]) * values[i];
  sums = own;
}

void add_squares_portable(const float* values, int64_t numel, Lanes& sums) {
  add_squares(values, numel, sums);
}

ZERORUN_AVX2 void add_squares_avx2(const float* values, int64_t numel, Lanes& sums) {
  add_squares(values, numel, sums);
}

}  // namespace

double sum_of_squares(const void* values, Dtype dtype, int64_t numel, Simd simd) {
  const auto add = simd >= Simd::avx2 ? add_squares_avx2 : add_squares_portable;
  Lanes sums{};
  if (dtype == Dtype::fp32) {
    add(static_cast<const float*>(values), numel, sums);
  } else {
    std::array<float, kConversionBlock> block;
    for (int64_t begin = 0; begin < numel; begin += kConversionBlock) {
      const int64_t length = std::min(kConversionBlock, numel - begin);
      widen(static_cast<const char*>(values) + begin * size_of(dtype), dtype, block.data(), length, simd);
      add(block.data(), length, sums);
    }
  }
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace zerorun
