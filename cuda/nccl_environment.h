// Environment variables that ZeroRun needs, for settings that NCCL takes from nowhere else. They are set when
// this library is loaded: before main(), or by the first connect() before it creates any communicator, since
// a process with several threads must not change its environment. Variables that the user has set stay.
#pragma once

namespace zerorun {

/// Sets NCCL_LAUNCH_ORDER_IMPLICIT (see [Note: two communicators] in nccl_comms.h) and
/// NCCL_MULTI_RANK_GPU_ENABLE (ranks may share a GPU; no effect if none do) unless the user has set them. Not
/// to be called while other threads exist.
void complete_nccl_environment();

/// Whether NCCL orders launches across communicators, which the user may have switched off.
bool nccl_orders_launches();

}  // namespace zerorun
