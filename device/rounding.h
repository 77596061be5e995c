// How an update rounds float32 to bfloat16 state, for host and device: to nearest, or at random so that the
// expected result is the value itself. Pure functions, no LibTorch; any thread.
//
// With bfloat16 weights, steps below half a unit in the last place are lost if each is rounded to nearest.
// Rounded at random they count on average (Zamirai et al. 2020, "Revisiting BFloat16 Training").
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace zerorun {

/// The random numbers of one run of a parameter's elements in one step. They depend on seed, step, parameter
/// and element alone, so slices and chunks do not change them.
struct RandomRounding {
  bool is_on = false;  // false: to nearest
  uint64_t key = 0;    // of seed, step and parameter
  int64_t first = 0;   // index in the parameter of the run's first element
};

/// The finalizer of splitmix64 (Steele et al. 2014): each bit of the result depends on all bits of `bits`.
ZERORUN_HOST_DEVICE uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31);
}

/// 64 random bits of an element, 16 for each of its states.
ZERORUN_HOST_DEVICE uint64_t bits_of_element(const RandomRounding& rounding, int64_t index) {
  return mixed(rounding.key + static_cast<uint64_t>(rounding.first + index) * 0x9e3779b97f4a7c15U);
}

/// Rounds to one of the two nearest bfloat16 numbers; upward in magnitude with the probability that the
/// expected result is `value`. Uses the lowest 16 bits of `random`. Infinities and NaN stay what they are.
ZERORUN_HOST_DEVICE uint16_t bf16_at_random(float value, uint64_t random) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return 0xffff;
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  return static_cast<uint16_t>((bits + (finite ? static_cast<uint32_t>(random & 0xffffU) : 0U)) >> 16);
}

}  // namespace zerorun
