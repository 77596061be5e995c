// Loads the CUDA part of ZeroRun, a separate library, on machines with an NVIDIA GPU. Includes no CUDA
// header. Any thread.
//
// [Note: CUDA first] LibTorch decides once per process whether CUDA is available: at its first query about
// accelerators (such as in torch::manual_seed) it checks whether its own CUDA library is loaded. Our CUDA
// library depends on LibTorch's, so it is loaded before main() if the NVIDIA driver is installed and
// ZERORUN_DEVICE is not cpu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/job_store.h"

namespace zerorun {

/// The type of the function in our CUDA library whose name is kConnectCuda. It sets `result` to a new
/// communicator for a rank whose tensors are on a GPU. `control` is a CPU communicator of the same ranks.
/// `store` is the rendezvous store, or null for a single rank.
using ConnectCuda = void(const Environment& environment, const std::shared_ptr<Communicator>& control,
                         const StorePointer& store, std::shared_ptr<Communicator>& result);
inline constexpr char kConnectCuda[] = "zerorun_connect_cuda";

struct CudaLibrary {
  ConnectCuda* connect = nullptr;
  std::string failure;  // if `connect` is null: why, and the remedy
};

/// Returns our CUDA library, which the first call loads ([Note: CUDA first]). It stays loaded until the
/// process ends.
const CudaLibrary& cuda_library();

/// Loads the first of `candidates` that exists. A candidate is a path, or a file name to search for along the
/// program's RUNPATH.
CudaLibrary load_cuda_library(const std::vector<std::string>& candidates);

/// Makes an error message, with the remedy, from the dynamic linker's message.
std::string explain_load_failure(const std::string& linkers_words);

}  // namespace zerorun
