// The CUDA part of ZeroRun, a library of its own that is loaded where there is an NVIDIA GPU. No CUDA header
// here. Any thread.
//
// [Note: CUDA first] LibTorch decides once, at the first question about accelerators (torch::manual_seed
// asks), whether this process has CUDA, by whether its CUDA library is loaded. So ours, which brings it
// along, is loaded before main() where the NVIDIA driver is installed, unless ZERORUN_DEVICE=cpu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/job_store.h"

namespace zerorun {

/// What the library exports under kConnectCuda: makes the communicator of a rank whose tensors lie on a GPU.
/// `control` connects the same ranks on the CPU, `store` is where they joined (null for one rank).
using ConnectCuda = void(const Environment& environment, const std::shared_ptr<Communicator>& control,
                         const StorePointer& store, std::shared_ptr<Communicator>& result);
inline constexpr char kConnectCuda[] = "zerorun_connect_cuda";

struct CudaLibrary {
  ConnectCuda* connect = nullptr;
  std::string failure;  // why there is none, and what to do about it
};

/// The library of this process, loaded by the first call (see the note above), kept to its end.
const CudaLibrary& cuda_library();

/// Loads the first of `candidates` that is there: paths, or a name to be found along the program's RUNPATH.
CudaLibrary load_cuda_library(const std::vector<std::string>& candidates);

/// What is wrong and the remedy, from the dynamic linker's words.
std::string explain_load_failure(const std::string& linkers_words);

}  // namespace zerorun
