// Which NCCL is loaded and what it can do. NCCL is found at run time, so it may be another than the one that
// this was compiled with. Any thread.
#pragma once

#include <string>

namespace zerorun {

struct NcclFeatures {
  int version = 0;  // as in NCCL_VERSION_CODE
  /// Memory at the same place on all ranks that kernels read and write directly (windows). NCCL has them
  /// since 2.27; before 2.29.7 its kernels on them do not notice an abort.
  bool windows = false;
  /// Several ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE).
  bool shared_gpus = false;
};

/// "2.28.9"
std::string nccl_version_text(int version);

NcclFeatures nccl_features(int version);

/// Throws UserError if a program compiled with `compiled` cannot work with `loaded`.
void check_nccl_version(int compiled, int loaded);

/// Of the NCCL that is loaded. Throws UserError as check_nccl_version() does.
NcclFeatures loaded_nccl();

}  // namespace zerorun
