// Defines what each ZeRO stage does. The rest of the runtime reads these properties and never the number of
// the stage. Pure functions.
#pragma once

#include <cstdint>

namespace zerorun {

struct StagePolicy {
  /// If true, every backward reduces gradients and each rank keeps only its slice. If false, each rank
  /// accumulates whole gradients and reduces them at the accumulation boundary.
  bool reduce_every_backward;
  /// If true, reduced gradients are all-gathered and every rank updates all parameters. If false, each rank
  /// updates its slice, and the updated parameters are all-gathered.
  bool replicate_update;
  /// If true, whole parameters are in memory only around their use. If false, they are always in memory.
  bool partition_parameters;
};

/// `stage`: 0 to 3; the config refuses other numbers.
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

/// Returns the bytes of model state on one rank (ZeRO, Rajbhandari et al. 2020, section 3). Every rank keeps
/// all values of `whole_parameters` parameters, and 1/world size of the values of the other parameters. The
/// values of `in_files` of these other parameters are in files and count 0 bytes.
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
