// GPU memory from NCCL's allocator. If it is registered, other GPUs can access it directly. Owned by its
// tensor, which may outlive the communicator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

#include "cuda/nccl_comms.h"

namespace zerorun {

/// In bytes. Smaller tensors do not use NCCL's allocator: it allocates whole pages of 2 MiB, so more than
/// half of a page would be wasted.
inline constexpr size_t kSmallestNcclMemory = size_t{1} << 20;

/// Whether NCCL can allocate memory on the current GPU.
bool nccl_has_memory();

class NcclMemory {
 public:
  /// Allocates `bytes` zeros on `device`, which must be the current GPU. The memory is deregistered from
  /// `comms` before it is freed. If the GPU has no memory left, frees LibTorch's cache, which waits for the
  /// GPU; throws Error if there is still none.
  NcclMemory(c10::Device device, size_t bytes, std::shared_ptr<NcclComms> comms);
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* get() const { return memory_; }
  /// Passes the memory to a 1-D tensor, which then owns it.
  at::Tensor as_tensor(int64_t numel, at::ScalarType dtype) &&;

 private:
  c10::Device device_;
  std::shared_ptr<NcclComms> comms_;
  void* memory_ = nullptr;
};

}  // namespace zerorun
