// Queries the NVIDIA driver's library for the GPUs that this process can use. Needs neither CUDA nor
// LibTorch. Any thread.
#pragma once

#include <string>

namespace zerorun {

/// The driver's library. It exists only where the driver is installed.
inline constexpr char kCudaDriver[] = "libcuda.so.1";

/// Whether that library can be loaded. Does not initialize the driver.
bool has_cuda_driver();

/// Returns the number of GPUs that this process may use; if it is 0, `reason` says why. `found` receives the
/// number of GPUs that the driver reports, usable or not. Initializes the driver, so the process must not
/// fork afterwards.
int count_usable_gpus(std::string& reason, int* found = nullptr);

}  // namespace zerorun
