// The NVIDIA driver, asked by its own library: which GPUs a process can use, without CUDA or LibTorch. Any
// thread.
#pragma once

#include <string>

namespace zerorun {

/// The driver's library, which is only where the driver is.
inline constexpr char kCudaDriver[] = "libcuda.so.1";

/// GPUs that this process may use. 0: `reason` says why. `found`: those that the driver has, fit for use or
/// not. Wakes the driver up: a process that has asked must not fork.
int count_usable_gpus(std::string& reason, int* found = nullptr);

}  // namespace zerorun
