// Helpers for GPU memory from any allocator: zeroing, freeing, and reporting failed allocations. Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <string>

#include "cuda/current_gpu.h"

namespace zerorun {

/// Fills `memory`, which is on the current GPU, with zeros. When it returns, every stream sees the zeros.
/// Does not wait for other streams.
void fill_with_zeros(void* memory, size_t bytes);

/// Waits for all work on GPU `device`, since it may still use the memory, and then calls `free` with that GPU
/// as the current one. For destructors: ignores CUDA errors, because CUDA may already be shut down at exit.
template <typename Free>
void free_when_idle(c10::DeviceIndex device, const Free& free) {
  const CurrentGpu current(device);
  cudaDeviceSynchronize();
  free();
  cudaGetLastError();
}

/// Throws Error for a failed allocation of `bytes` bytes. The message contains the memory's owner (`whose`,
/// for example "GPU 0"), the current GPU's free bytes and `reason`.
[[noreturn]] void fail_allocation(const std::string& whose, size_t bytes, const char* reason);

}  // namespace zerorun
