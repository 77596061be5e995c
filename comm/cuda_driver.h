// Asks the NVIDIA driver's library which GPUs this process can use, without CUDA or LibTorch. Any thread.
#pragma once

#include <string>

namespace zerorun {

/// The driver's library, which exists only where the driver is installed.
inline constexpr char kCudaDriver[] = "libcuda.so.1";

/// The number of GPUs that this process may use; if 0, `reason` says why. `found`: the GPUs that the driver
/// has, usable or not. Initializes the driver: the process must not fork afterwards.
int count_usable_gpus(std::string& reason, int* found = nullptr);

}  // namespace zerorun
