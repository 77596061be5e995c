#include "optim/gradient_norm.h"

#include <algorithm>
#include <array>

namespace zerorun {
namespace {

constexpr int kLanes = 16;

#if defined(__x86_64__)
#define ZERORUN_DISPATCH_AVX2 1
#endif

// The body is compiled once for each instruction set; without fused multiply-add all give the same bits.
[[gnu::always_inline]] inline double sum_lanes(const float* values, int64_t numel) {
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (int lane = 0; i < numel; ++i, ++lane) sums[lane] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

#ifdef ZERORUN_DISPATCH_AVX2
[[gnu::target("avx2")]] double sum_avx2(const float* values, int64_t numel) {
  return sum_lanes(values, numel);
}
#endif

double sum_baseline(const float* values, int64_t numel) {
  return sum_lanes(values, numel);
}

using SumFunction = double (*)(const float*, int64_t);

SumFunction choose() {
#ifdef ZERORUN_DISPATCH_AVX2
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_baseline;
}

}  // namespace

double sum_of_squares(const float* values, int64_t numel) {
  static const SumFunction sum = choose();
  return sum(values, numel);
}

double clip_divisor(double norm, double limit) {
  if (limit <= 0) return 1;
  return std::max(1.0, (norm + 1e-6) / limit);
}

}  // namespace zerorun
