// What NCCL reads from the environment alone and ZeroRun needs. Set while this library is loaded: before
// main(), or by the first connect() before it makes any communicator, since a process that has threads must
// not change its environment. What the user has set stays.
#pragma once

namespace zerorun {

/// Sets NCCL_LAUNCH_ORDER_IMPLICIT (see [Note: two communicators] in nccl_comms.h) and
/// NCCL_MULTI_RANK_GPU_ENABLE (ranks may share a GPU; it asks for nothing where none do) where the user has
/// not. Not while there are other threads.
void complete_nccl_environment();

/// Whether NCCL keeps communicators from waiting for each other: the user may have switched that off.
bool nccl_orders_launches();

}  // namespace zerorun
