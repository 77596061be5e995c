// What all memory of a GPU has in common, whoever allocates it: how it is filled, freed, and missed. Any
// thread.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <string>

namespace zerorun {

/// Zeros for every stream when it returns. Waits for no work of other streams. `memory` is on the current
/// GPU.
void fill_with_zeros(void* memory, size_t bytes);

/// Calls `free` with GPU `device` as the current one, when all its work is done: what memory has been used
/// for ends before it goes. For destructors: says nothing, since at a program's end CUDA may be gone.
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

/// Throws Error: `whose` memory ("GPU 0") has no `bytes` left, how much of the GPU's is free, and `reason`.
[[noreturn]] void fail_allocation(const std::string& whose, size_t bytes, const char* reason);

}  // namespace zerorun
