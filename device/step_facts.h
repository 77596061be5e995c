// The gradient norm of an optimizer step and the decision whether to skip the step. The device computes both
// and keeps them in its memory, so that the update does not wait for the host. Plain structs and pure
// functions for host and device, no LibTorch.
//
// [Note: finite checks] Kernels report values that are not finite by number. The gradients or elements that a
// kernel checks have ascending numbers from 1 or higher, given by the kernel's caller. A slot keeps the
// smallest number that a kernel has reported, stored as its bitwise complement: the smallest number has the
// largest complement. So a kernel reports a number by taking the maximum of two unsigned integers, and 0, as
// in zero-filled memory, means that nothing was reported.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/host_device.h"

namespace zerorun {

/// What this rank measures in the gradients of one step.
struct Tally {
  double squares;     // sum of squares of the reduced gradients in this rank's slices
  uint64_t gradient;  // slot: this rank's first local gradient that is not finite
  uint64_t sum;       // slot: the first reduced gradient that is not finite
};

/// Returns the value that a slot stores for `number`: the bitwise complement.
ZERORUN_HOST_DEVICE uint64_t slot_of(int64_t number) {
  return ~static_cast<uint64_t>(number);
}
/// The number in a slot; 0 if nothing was reported.
ZERORUN_HOST_DEVICE int64_t number_in(uint64_t slot) {
  return slot == 0 ? 0 : static_cast<int64_t>(~slot);
}

/// A step's results, which are the same on all ranks.
struct StepFacts {
  double norm;     // of the whole gradient; infinite when a value is not finite
  double divisor;  // all gradients are divided by it: StepRule::scale times the clip divisor
  float factor;    // 1 / divisor
  int32_t apply;   // 1: all gradients are finite, so update; 0: skip the step
};

// [Note: exchange] The ranks all-reduce one float64 tensor per step. It has three parts, each with one
// element per rank: the sums of squares, the numbers of each rank's first local gradient that is not finite
// (0: none), and the numbers of each rank's first reduced gradient that is not finite. Each rank fills in its
// own elements and zeros elsewhere, so that the sums are exact. The StepFacts computed from these elements
// follow in the same tensor and are not exchanged.

/// Number of elements that are exchanged.
ZERORUN_HOST_DEVICE int64_t exchanged_numel(int ranks) {
  return int64_t{3} * ranks;
}
inline constexpr int64_t kFactsNumel = sizeof(StepFacts) / sizeof(double);

/// Writes this rank's elements, and zeros to the elements of the other ranks.
ZERORUN_HOST_DEVICE void publish(const Tally& tally, double* exchange, int rank, int ranks) {
  for (int64_t i = 0; i < exchanged_numel(ranks); ++i) exchange[i] = 0;
  exchange[rank] = tally.squares;
  exchange[ranks + rank] = static_cast<double>(number_in(tally.gradient));
  exchange[2 * ranks + rank] = static_cast<double>(number_in(tally.sum));
}

struct StepRule {
  double scale;     // reduced gradients = true gradients * scale
  double clipping;  // maximum gradient norm; 0: no clipping
};

/// Returns the divisor (at least 1) that reduces the norm of gradients to `limit` or less (0: no limit):
/// (norm + 1e-6) / limit if that exceeds 1 (DeepSpeed's stage_1_and_2.py, unscale_and_clip_grads).
ZERORUN_HOST_DEVICE double clip_divisor(double norm, double limit) {
  const double divisor = limit > 0 ? (norm + 1e-6) / limit : 1;
  return divisor > 1 ? divisor : 1;
}

/// Computes the facts from the ranks' sums of squares, which it adds in rank order.
ZERORUN_HOST_DEVICE StepFacts decide(const double* squares, int ranks, const StepRule& rule) {
  constexpr double kLargestFloat = 0x1.fffffep127;
  double total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += squares[rank];
  const bool finite = total < HUGE_VAL;  // neither infinite nor NaN
  double norm = finite ? std::sqrt(total) / rule.scale : HUGE_VAL;
  // Rounded to float32, so that the order in which slices were added makes no difference.
  if (norm <= kLargestFloat) norm = static_cast<float>(norm);
  const double divisor = rule.scale * clip_divisor(norm, rule.clipping);
  return {norm, divisor, static_cast<float>(1 / divisor), finite ? 1 : 0};
}

}  // namespace zerorun
