// The NCCL that ranks on GPUs will load. judge_nccl() is pure. Any thread.
#pragma once

#include <string>

#include "doctor/finding.h"

namespace zerorun::doctor {

struct Nccl {
  std::string file;  // its path; empty if none was found
  int version = 0;   // as NCCL encodes it: 22809 for 2.28.9; 0: it does not say
};

/// Looks at the NCCL in use by this process, then at those that the dynamic linker finds, and at the one that
/// pip has installed into the active virtual environment. Loads it, which does not need a GPU.
Nccl read_nccl();

// A LibTorch, and the NCCL that its wheels bring.
struct TorchsNccl {
  std::string torch;  // "2.15"
  int version;
};

// That of the LibTorch that ZeroRun is built for.
TorchsNccl torchs_nccl();

Finding judge_nccl(const Nccl& nccl, const TorchsNccl& torchs = torchs_nccl());

}  // namespace zerorun::doctor
