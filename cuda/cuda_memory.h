// Helpers for GPU memory from any allocator: zero it, free it, report that it ran out. Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <string>

namespace zerorun {

/// Fills with zeros, which every stream sees on return. Does not wait for other streams. `memory` is on the
/// current GPU.
void fill_with_zeros(void* memory, size_t bytes);

/// Waits for all work on GPU `device`, which may still use the memory, then calls `free` with that GPU as the
/// current one. For destructors: ignores CUDA's errors, since CUDA may already be shut down at exit.
template <typename Free>
void free_when_idle(c10::DeviceIndex device, const Free& free) {
  int outer = device;
  cudaGetDevice(&outer);
  if (outer != device) cudaSetDevice(device);
  cudaDeviceSynchronize();
  free();
  if (outer != device) cudaSetDevice(outer);
  cudaGetLastError();
}

/// Throws Error: `whose` memory ("GPU 0") has no `bytes` left; adds the GPU's free bytes and `reason`.
[[noreturn]] void fail_allocation(const std::string& whose, size_t bytes, const char* reason);

}  // namespace zerorun
