// What an optimizer step comes to, in memory of the device that computes it: no host needs to know before the
// update runs. Plain structs and pure functions for host and device, no LibTorch.
//
// [Note: findings] Whatever may turn out infinite or NaN has a number of at least 1, the smaller the earlier.
// A slot keeps the smallest number told to it, as its complement: so 0 means that nothing was told, and
// memory of zeros is a good start.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/host_device.h"

namespace zerorun {

/// What this rank sees of the gradients of one step.
struct Tally {
  double squares;     // the sum of those of the sums over ranks in this rank's slices
  uint64_t gradient;  // slot: its first gradient that is not finite
  uint64_t sum;       // slot: the first sum over ranks that is not finite
};

/// What a number leaves in a slot; of several the largest stays.
ZERORUN_HOST_DEVICE uint64_t slot_of(int64_t number) {
  return ~static_cast<uint64_t>(number);
}
/// The number in a slot; 0: none.
ZERORUN_HOST_DEVICE int64_t number_in(uint64_t slot) {
  return slot == 0 ? 0 : static_cast<int64_t>(~slot);
}

/// What all ranks agree on.
struct StepFacts {
  double norm;     // of the whole gradient; infinite when a value is not finite
  double divisor;  // of all gradients
  float factor;    // 1 / divisor
  int32_t apply;   // 1: all is finite, update; 0: leave everything as it is
};

// [Note: exchange] One tensor of float64 carries what ranks tell each other about a step: for every rank its
// sum of squares, then for every rank the number of its first gradient that is not finite (0: none), then
// likewise that of its first sum over ranks. Each rank fills in its own places, so that adding zeros is all
// that the all-reduce does to them. Behind them, not exchanged, the facts that follow.

/// Elements that are exchanged.
ZERORUN_HOST_DEVICE int64_t exchanged_numel(int ranks) {
  return int64_t{3} * ranks;
}
inline constexpr int64_t kFactsNumel = sizeof(StepFacts) / sizeof(double);

/// Fills in a rank's places, and zero everywhere else.
ZERORUN_HOST_DEVICE void publish(const Tally& tally, double* exchange, int rank, int ranks) {
  for (int64_t i = 0; i < exchanged_numel(ranks); ++i) exchange[i] = 0;
  exchange[rank] = tally.squares;
  exchange[ranks + rank] = static_cast<double>(number_in(tally.gradient));
  exchange[2 * ranks + rank] = static_cast<double>(number_in(tally.sum));
}

struct StepRule {
  double scale;     // the sums over ranks are this many times the gradient
  double clipping;  // the largest norm; 0: none
};

/// The factor 1/d that gradients are multiplied with so that their norm is at most `limit` (0: no limit), as
/// its inverse d >= 1: d = (norm + 1e-6) / limit when that exceeds 1 (DeepSpeed's stage_1_and_2.py,
/// unscale_and_clip_grads).
ZERORUN_HOST_DEVICE double clip_divisor(double norm, double limit) {
  const double divisor = limit > 0 ? (norm + 1e-6) / limit : 1;
  return divisor > 1 ? divisor : 1;
}

/// From every rank's sum of squares, added in rank order.
ZERORUN_HOST_DEVICE StepFacts decide(const double* squares, int ranks, const StepRule& rule) {
  constexpr double kLargestFloat = 0x1.fffffep127;
  double total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += squares[rank];
  const bool finite = total < HUGE_VAL;  // neither infinite nor NaN
  double norm = finite ? std::sqrt(total) / rule.scale : HUGE_VAL;
  // Rounded, so that the order in which slices were added shows nowhere.
  if (norm <= kLargestFloat) norm = static_cast<float>(norm);
  const double divisor = rule.scale * clip_divisor(norm, rule.clipping);
  return {norm, divisor, static_cast<float>(1 / divisor), finite ? 1 : 0};
}

}  // namespace zerorun
