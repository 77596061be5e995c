#include "base/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace zerorun {
namespace {

Simd detect() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  // The builtin also asks whether the system saves the wide registers.
  if (f16c && __builtin_cpu_supports("avx2")) return Simd::avx2;
#endif
  return Simd::portable;
}

}  // namespace

Simd widest_simd() {
  static const Simd simd = detect();
  return simd;
}

}  // namespace zerorun
