// Translates collectives into NCCL's functions. Any thread.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace zerorun {

/// One half of a message, for a communicator of two ranks. `is_first`: the first one on the communicator in
/// this direction, which connects the ranks and so waits for the other one.
struct NcclMessage {
  at::Tensor tensor;
  bool is_send;
  bool is_first = false;
};

/// Makes an error message for a failed NCCL call.
std::string nccl_failure(ncclResult_t result);

/// Whether the collective adds up the ranks' values.
bool reduces(const CollectiveCall& call);

/// Throws InternalError if NCCL cannot add values of the dtype of one of `calls`.
void check_sums(std::span<const CollectiveCall> calls);

/// Enqueues `call` on `stream`. The tensors must be on the GPU and not empty.
ncclResult_t enqueue(const CollectiveCall& call, ncclComm_t comm, cudaStream_t stream);

/// Enqueues a message to or from rank `other` of `comm`, under the same conditions.
ncclResult_t enqueue(const NcclMessage& message, int other, ncclComm_t comm, cudaStream_t stream);

/// Returns a hash of the kinds, dtypes and sizes of `calls`: what NCCL chooses its algorithm by. So if NCCL
/// has enqueued calls of the same shape before, it has already connected the ranks for them.
uint64_t shape_of(std::span<const CollectiveCall> calls);

}  // namespace zerorun
