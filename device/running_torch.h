// The check that a program runs with a LibTorch that it was compiled for. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

/// Throws UserError if the LibTorch that this process has loaded is of another minor version than the one
/// that ZeroRun was compiled for: classes of LibTorch have other layouts there. Calls after the first cost
/// nothing.
void check_running_torch();

/// Why a LibTorch does not fit this build, or nothing if it does. `abi_version` is TORCH_ABI_VERSION of that
/// LibTorch.
std::string misfit_of_torch(uint64_t abi_version);

}  // namespace zerorun
