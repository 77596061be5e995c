#include "device/running_torch.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdio>
#include <cstdlib>

#include "base/torch_version.h"

namespace zerorun {
namespace {

// TORCH_ABI_VERSION has the major version in its first byte, the minor in its second.
constexpr int kMinorShift = 48;

std::string minor_version(uint64_t abi_version) {
  return std::to_string(abi_version >> 56) + "." + std::to_string(abi_version >> kMinorShift & 0xff);
}

}  // namespace

std::string misfit_of_torch(uint64_t abi_version) {
  constexpr uint64_t kBuiltFor = TORCH_ABI_VERSION;
  if (abi_version >> kMinorShift == kBuiltFor >> kMinorShift) return "";
  const std::string built_for = minor_version(kBuiltFor);
  return "this program was built for LibTorch " + built_for + ", and has loaded LibTorch " +
         minor_version(abi_version) +
         ": remove that LibTorch's folder from LD_LIBRARY_PATH, add the folder of a LibTorch " + built_for +
         ", or build the program again (docs/versions.md)";
}

bool require_running_torch() {
  const std::string misfit = misfit_of_torch(aoti_torch_abi_version());
  if (misfit.empty()) return true;
  std::fprintf(stderr, "error: %s\n", misfit.c_str());
  std::_Exit(2);
}

}  // namespace zerorun
