#include "cuda/nccl_registration.h"

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr char kVariable[] = "ZERORUN_NCCL_REGISTER";

}  // namespace

const char* name_of(NcclRegistration registration) {
  switch (registration) {
    case NcclRegistration::buffers:
      return "buffers";
    case NcclRegistration::windows:
      return "windows";
    case NcclRegistration::none:
      break;
  }
  return "none";
}

NcclRegistration parse_nccl_registration(const char* value, const NcclFeatures& features) {
  const std::string text = value ? value : "";
  if (text.empty() || text == "none") return NcclRegistration::none;
  if (text == "buffers") return NcclRegistration::buffers;
  if (text != "windows") {
    throw UserError(std::string(kVariable) + "=" + text +
                    ": expected none (the default), buffers, or windows (from NCCL " +
                    nccl_version_text(kFirstNcclWithWindows) + ")");
  }
  if (!features.windows) {
    throw UserError(std::string(kVariable) + "=windows needs NCCL " +
                    nccl_version_text(kFirstNcclWithWindows) + " or later, and " +
                    nccl_version_text(features.version) +
                    " is loaded: set it to none or buffers, or install a later NCCL");
  }
  return NcclRegistration::windows;
}

NcclRegistration nccl_registration(const NcclFeatures& features) {
  return parse_nccl_registration(std::getenv(kVariable), features);
}

}  // namespace zerorun
