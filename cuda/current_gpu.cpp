#include "cuda/current_gpu.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <exception>

namespace zerorun {
namespace {

// At the end of a process CUDA may be shut down already. Then there is nothing to go back to.
bool has_context(int device) {
  try {
    return c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(device));
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

CurrentGpu::CurrentGpu(c10::DeviceIndex device) : device_(device), outer_(device) {
  cudaGetDevice(&outer_);  // creates no context
  if (outer_ != device_) cudaSetDevice(device_);
}

CurrentGpu::~CurrentGpu() {
  if (outer_ != device_ && has_context(outer_)) cudaSetDevice(outer_);
}

}  // namespace zerorun
