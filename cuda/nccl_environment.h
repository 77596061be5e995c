// Sets environment variables for NCCL settings that have no other interface. This library sets them when it
// is loaded, which is before main() or in the first connect(), because a process must not change its
// environment once it has several threads. Variables that the user has set are kept.
#pragma once

namespace zerorun {

/// Sets NCCL_LAUNCH_ORDER_IMPLICIT ([Note: two communicators] in cuda/nccl_comms.h) and
/// NCCL_MULTI_RANK_GPU_ENABLE, unless the user has set them. The second variable allows ranks to share a GPU,
/// and has no other effect. Must not be called while other threads exist.
void complete_nccl_environment();

/// Whether NCCL orders launches across communicators. The user may have disabled that.
bool nccl_orders_launches();

}  // namespace zerorun
