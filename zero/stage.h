// What a ZeRO stage means, in one place: answers to the questions the rest of the runtime asks. Pure.
#pragma once

#include <cstdint>

namespace zerorun {

struct StagePolicy {
  /// Gradients are reduced by every backward and only this rank's slice is kept (else: whole gradients
  /// accumulate locally and are reduced at the accumulation boundary).
  bool reduce_every_backward;
  /// Reduced gradients are gathered again, so every rank updates all parameters (else: each rank updates its
  /// slice, then updated parameters are gathered).
  bool replicate_update;
};

/// Stages 0 to 2; the config refuses others.
constexpr StagePolicy policy_of(int stage) {
  return {.reduce_every_backward = stage >= 2, .replicate_update = stage == 0};
}

/// Model-state bytes per rank under fp32 training: parameters, gradients and `moment_bytes` of optimizer
/// state per parameter (8 for Adam). ZeRO (Rajbhandari et al. 2020), section 3, with fp32 in place of its
/// mixed precision.
constexpr double model_state_bytes(int64_t parameters, int world_size, StagePolicy policy, int moment_bytes) {
  const double n = static_cast<double>(parameters);
  const double gradients = policy.reduce_every_backward ? 4 * n / world_size : 4 * n;
  const double moments = policy.replicate_update ? moment_bytes * n : moment_bytes * n / world_size;
  return 4 * n + gradients + moments;
}

}  // namespace zerorun
