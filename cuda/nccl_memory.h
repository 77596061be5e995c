// GPU memory from NCCL's allocator, which can be registered: other GPUs then access it directly. It lives as
// long as its tensor, which may outlive the communicator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

#include "cuda/nccl_comms.h"

namespace zerorun {

/// Smaller allocations would waste memory: NCCL allocates pages of 2 MiB.
inline constexpr size_t kSmallestNcclMemory = size_t{1} << 20;

/// Whether NCCL can allocate memory on the current GPU.
bool nccl_has_memory();

class NcclMemory {
 public:
  /// `bytes` of zeros on `device`, the current GPU. Deregisters from `comms` before it frees the memory.
  /// Throws Error when the GPU has no memory left.
  NcclMemory(c10::Device device, size_t bytes, std::shared_ptr<NcclComms> comms);
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* get() const { return memory_; }
  /// Transfers the memory to a 1-D tensor.
  at::Tensor as_tensor(int64_t numel, at::ScalarType dtype) &&;

 private:
  c10::Device device_;
  std::shared_ptr<NcclComms> comms_;
  void* memory_ = nullptr;
};

}  // namespace zerorun
