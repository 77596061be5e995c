// NCCL's variables that every rank on a GPU needs. NCCL reads each only once, so whoever starts a rank or
// loads the GPU part sets those that are not set. The Python package sets the same ones before it loads this
// code (python/zerorun/_nccl.py).
#pragma once

#include <array>

namespace zerorun {

/// Collectives of two communicators start in the order in which the host calls them.
inline constexpr char kNcclLaunchOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
/// Ranks may share a GPU, from NCCL 2.30. It has no other effect.
inline constexpr char kNcclSharedGpus[] = "NCCL_MULTI_RANK_GPU_ENABLE";
/// To be set to 1 unless the user has set them.
inline constexpr std::array<const char*, 2> kNcclVariables = {kNcclLaunchOrder, kNcclSharedGpus};

}  // namespace zerorun
