#include "base/simd.h"

#include <array>
#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace zerorun {
namespace {

Simd detect() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  // The builtin also checks that the operating system saves the wide registers.
  if (!f16c || !__builtin_cpu_supports("avx2")) return Simd::portable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Simd::avx512 : Simd::avx2;
#else
  return Simd::portable;
#endif
}

}  // namespace

std::span<const Simd> available_simds() {
  static constexpr std::array kAll = {Simd::portable, Simd::avx2, Simd::avx512};
  return std::span(kAll).first(static_cast<size_t>(widest_simd()) + 1);
}

Simd widest_simd() {
  static const Simd simd = detect();
  return simd;
}

}  // namespace zerorun
