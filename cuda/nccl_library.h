// The version and features of the loaded NCCL, which is found at run time and may differ from the version
// that ZeroRun was compiled with. Thread-safe.
#pragma once

#include <string>

namespace zerorun {

struct NcclFeatures {
  int version = 0;  // as in NCCL_VERSION_CODE
  /// Symmetric memory of all ranks that kernels access directly (windows). NCCL supports windows since 2.27,
  /// but before 2.29.7 its kernels that use them do not notice an abort, so this is false.
  bool windows = false;
  /// Several ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE).
  bool shared_gpus = false;
};

/// "2.28.9"
std::string nccl_version_text(int version);

NcclFeatures nccl_features(int version);

/// Throws UserError if a program compiled with NCCL `compiled` cannot run with NCCL `loaded`.
void check_nccl_version(int compiled, int loaded);

/// Features of the loaded NCCL. Throws UserError as check_nccl_version() does.
NcclFeatures loaded_nccl();

}  // namespace zerorun
