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
  /// Parameters are there around their use only (else: always).
  bool partition_parameters;
};

/// Stages 0 to 3; the config refuses others.
constexpr StagePolicy policy_of(int stage) {
  return {.reduce_every_backward = stage >= 2,
          .replicate_update = stage == 0,
          .partition_parameters = stage == 3};
}

/// Model-state bytes per rank under fp32 training: parameters, gradients and `moment_bytes` of optimizer
/// state per parameter (8 for Adam), of which `persistent` ones are never partitioned. ZeRO (Rajbhandari et
/// al. 2020), section 3, with fp32 in place of its mixed precision.
constexpr double model_state_bytes(int64_t parameters, int64_t persistent, int world_size, StagePolicy policy,
                                   int moment_bytes) {
  const double n = static_cast<double>(parameters);
  const double whole = policy.partition_parameters ? static_cast<double>(persistent) : n;
  const double values = 4 * (whole + (n - whole) / world_size);
  const double gradients = policy.reduce_every_backward ? 4 * n / world_size : 4 * n;
  const double moments = policy.replicate_update ? moment_bytes * n : moment_bytes * n / world_size;
  return values + gradients + moments;
}

}  // namespace zerorun
