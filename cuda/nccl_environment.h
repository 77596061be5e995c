// Sets environment variables for NCCL settings that have no other interface. This library sets them when it
// is loaded, which is before main() or in the first connect(), because a process must not change its
// environment once it has several threads. Variables that the user has set are kept.
#pragma once

namespace zerorun {

/// Sets the following variables, unless the user has set them. Must not be called while other threads exist.
///  - kNcclVariables to 1 (base/nccl_variables.h; [Note: two communicators] in cuda/nccl_comms.h)
///  - NCCL_NVLS_ENABLE to 0 if ranks of this host will share a GPU, as far as the environment tells: NVLink
///    SHARP does not support that, and NCCL up to 2.31.1 does not switch it off on all ranks alike
void complete_nccl_environment();

/// Whether `local_world_size` ranks share GPUs, of which CUDA_VISIBLE_DEVICES is `visible` and the host has
/// `installed`. The first two may be null if they are not set. False if that cannot be known.
bool ranks_share_gpus(const char* local_world_size, const char* visible, int installed);

/// Whether NCCL orders launches across communicators. The user may have disabled that.
bool nccl_orders_launches();

}  // namespace zerorun
