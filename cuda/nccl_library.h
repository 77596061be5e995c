// The version and features of the NCCL library that is loaded at run time. It may differ from the version
// that ZeroRun was compiled with. Thread-safe.
#pragma once

#include <string>

namespace zerorun {

struct NcclFeatures {
  int version = 0;  // encoded as in NCCL_VERSION_CODE
  /// Whether symmetric memory windows, through which kernels access all ranks' memory directly, can be used
  /// (cuda/nccl_registration.h).
  bool windows = false;
  /// Whether several ranks may share a GPU (with NCCL_MULTI_RANK_GPU_ENABLE).
  bool shared_gpus = false;
};

/// NCCL has windows since 2.27. But before 2.29.7 kernels that use windows ignore an abort, and up to 2.31.1
/// registering a window while a program runs may hang.
inline constexpr int kFirstNcclWithWindows = 23102;

/// For example "2.28.9".
std::string nccl_version_text(int version);

NcclFeatures nccl_features(int version);

/// Throws UserError if a program that was compiled with NCCL `compiled` cannot run with NCCL `loaded`.
void check_nccl_version(int compiled, int loaded);

/// Returns the features of the loaded NCCL. Throws UserError like check_nccl_version().
NcclFeatures loaded_nccl();

}  // namespace zerorun
