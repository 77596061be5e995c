// The check that a program runs with the LibTorch that it was compiled for. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

/// Why a LibTorch does not fit this build, or nothing if it does: classes of LibTorch have other layouts in
/// another minor version. `abi_version` is TORCH_ABI_VERSION of that LibTorch.
std::string misfit_of_torch(uint64_t abi_version);

/// Ends the process with an error and exit code 2 if the LibTorch that it has loaded does not fit. Returns
/// true.
bool require_running_torch();

}  // namespace zerorun
