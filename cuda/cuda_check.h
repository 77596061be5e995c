// Turns error codes of the CUDA runtime into exceptions. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

namespace zerorun {

/// Throws Error with the text of `call`, the current GPU and CUDA's error message.
[[noreturn]] void fail_cuda(cudaError_t status, const char* call);

inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail_cuda(status, call);
}

}  // namespace zerorun

/// Calls a CUDA runtime function. Throws Error if it fails.
#define ZR_CUDA(call) ::zerorun::check_cuda((call), #call)
