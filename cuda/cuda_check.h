// What CUDA's runtime says about a call, as an error. Any thread.
#pragma once

#include <cuda_runtime_api.h>

namespace zerorun {

/// Throws Error naming `call`, the GPU and CUDA's reason.
[[noreturn]] void fail_cuda(cudaError_t status, const char* call);

inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail_cuda(status, call);
}

}  // namespace zerorun

/// Makes a call to CUDA's runtime; throws Error when it fails.
#define ZR_CUDA(call) ::zerorun::check_cuda((call), #call)
