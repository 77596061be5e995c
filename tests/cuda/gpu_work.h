// Work that keeps a GPU busy for a known time.
#pragma once

#include <ATen/cuda/Sleep.h>

#include <chrono>

#include "cuda/cuda_check.h"

namespace zerorun::testing {

/// Keeps the current stream busy for at least `time`, and longer if the GPU is not at its highest clock.
inline void work_for(std::chrono::milliseconds time) {
  int kilohertz = 0;
  ZR_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0));
  at::cuda::sleep(time.count() * kilohertz);
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace zerorun::testing
