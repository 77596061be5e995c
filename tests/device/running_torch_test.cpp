// Tests of device/running_torch.h.
#include "device/running_torch.h"

#include <catch2/catch.hpp>

#include "base/torch_version.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;

constexpr uint64_t abi_version(uint64_t minor, uint64_t patch) {
  return uint64_t{2} << 56 | minor << 48 | patch << 40;
}

TEST_CASE("a LibTorch of another minor version is refused, and both are named") {
  const std::string built_for = "2." + std::to_string(TORCH_VERSION_MINOR);
  for (const uint64_t minor : {TORCH_VERSION_MINOR - 1, TORCH_VERSION_MINOR + 1}) {
    CHECK_THAT(misfit_of_torch(abi_version(minor, 0)),
               Contains("built for LibTorch " + built_for + ",") &&
                   Contains("has loaded LibTorch 2." + std::to_string(minor)) && Contains("LD_LIBRARY_PATH"));
  }
}

TEST_CASE("a patch release of LibTorch counts as its minor version") {
  for (const uint64_t patch : {0, 1, 7})
    CHECK(misfit_of_torch(abi_version(TORCH_VERSION_MINOR, patch)).empty());
  CHECK(require_running_torch());
}

}  // namespace
}  // namespace zerorun
