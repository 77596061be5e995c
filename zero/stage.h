// The meaning of the ZeRO stages, in one place: the properties that the rest of the runtime asks for. Pure.
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
  /// Parameters are in memory only around their use (else: always).
  bool partition_parameters;
};

/// Stages 0 to 3; the config refuses others.
constexpr StagePolicy policy_of(int stage) {
  return {.reduce_every_backward = stage >= 2,
          .replicate_update = stage == 0,
          .partition_parameters = stage == 3};
}

/// Bytes that training keeps for one parameter, before anything is divided among ranks.
struct BytesPerParameter {
  int64_t value = 4;
  int64_t gradient = 4;
  double master = 0;   // 4 under 16-bit training
  double moments = 0;  // optimizer state, 8 for Adam
};

/// Model-state bytes per rank. Every rank keeps the values of `whole_parameters` parameters and its part of
/// the other values, except those of `in_files` parameters, which count 0. ZeRO (Rajbhandari et al. 2020),
/// section 3.
constexpr double model_state_bytes(int64_t parameters, int64_t whole_parameters, int64_t in_files,
                                   int world_size, StagePolicy policy, const BytesPerParameter& bytes) {
  const double n = static_cast<double>(parameters);
  const double whole = static_cast<double>(whole_parameters);
  const double own = n / world_size;
  return static_cast<double>(bytes.value) *
             (whole + (n - whole - static_cast<double>(in_files)) / world_size) +
         static_cast<double>(bytes.gradient) * (policy.reduce_every_backward ? own : n) +
         (bytes.master + bytes.moments) * (policy.replicate_update ? n : own);
}

}  // namespace zerorun
