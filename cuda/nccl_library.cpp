#include "cuda/nccl_library.h"

#include <nccl.h>

#include "base/error.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7), "headers of NCCL 2.28.7 or later are needed");
static_assert(zerorun::kFirstNcclWithWindows == NCCL_VERSION(2, 31, 2));

namespace zerorun {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 28, 7);  // first version with all functions that ZeroRun calls

}  // namespace

std::string nccl_version_text(int version) {
  // Since NCCL 2.9, version codes have two digits for the minor version.
  const int minor_unit = 100;
  const int major_unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / minor_unit) +
         "." + std::to_string(version % minor_unit);
}

NcclFeatures nccl_features(int version) {
  return {.version = version,
          .windows = version >= kFirstNcclWithWindows,
          .shared_gpus = version >= NCCL_VERSION(2, 30, 0)};
}

void check_nccl_version(int compiled, int loaded) {
  const std::string found = "NCCL " + nccl_version_text(loaded) + " is loaded (libnccl.so.2)";
  const std::string remedy = "; let LD_LIBRARY_PATH name the folder of a libnccl.so.2 that fits";
  if (loaded < kOldest) {
    throw UserError(found + ", " + nccl_version_text(kOldest) + " or later is needed, and " +
                    nccl_version_text(compiled) + " is what ZeroRun was built with" + remedy);
  }
  if (loaded / 10000 != compiled / 10000) {
    throw UserError(found + ", and ZeroRun was built with NCCL " + nccl_version_text(compiled) +
                    ": their major versions must be the same" + remedy + ", or build ZeroRun with that NCCL");
  }
}

NcclFeatures loaded_nccl() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess) {
    throw Error(std::string("NCCL does not report its version: ") + ncclGetErrorString(result));
  }
  check_nccl_version(NCCL_VERSION_CODE, version);
  return nccl_features(version);
}

}  // namespace zerorun
