// The CUDA part of ZeroRun, a separate library that is loaded if there is an NVIDIA GPU. Includes no CUDA
// header. Any thread.
//
// [Note: CUDA first] LibTorch decides once, at the first question about accelerators (torch::manual_seed
// asks), whether this process has CUDA: whether its CUDA library is loaded. So our library, which depends
// on it, is loaded before main() if the NVIDIA driver is installed and ZERORUN_DEVICE is not cpu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/job_store.h"

namespace zerorun {

/// The function that the library exports as kConnectCuda: makes the communicator of a rank whose tensors
/// are on a GPU. `control` connects the same ranks on the CPU, `store` is where they joined (null for one
/// rank).
using ConnectCuda = void(const Environment& environment, const std::shared_ptr<Communicator>& control,
                         const StorePointer& store, std::shared_ptr<Communicator>& result);
inline constexpr char kConnectCuda[] = "zerorun_connect_cuda";

struct CudaLibrary {
  ConnectCuda* connect = nullptr;
  std::string failure;  // why there is none, and what to do about it
};

/// The library, loaded by the first call ([Note: CUDA first]) and kept until the process ends.
const CudaLibrary& cuda_library();

/// Loads the first of `candidates` that exists: paths, or a name to be found along the program's RUNPATH.
CudaLibrary load_cuda_library(const std::vector<std::string>& candidates);

/// The problem and its remedy, from the dynamic linker's message.
std::string explain_load_failure(const std::string& linkers_words);

}  // namespace zerorun
