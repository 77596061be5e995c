// Exports a checkpoint's parameters and buffers as a folder for Hugging Face's loaders. Used by one thread.
// Besides the manifest it uses less than 32 MiB of memory, plus twice the size of a non-contiguous parameter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/saved_state.h"

namespace zerorun::convert {

struct ExportOptions {
  Dtype dtype = Dtype::fp32;  // for tensors in fp32, bf16 and fp16; other tensors keep their dtype
  int64_t max_shard_bytes = int64_t{5'000'000'000};
};

struct ExportedModel {
  std::vector<std::string> files;
  int64_t tensors = 0;
  int64_t bytes = 0;                  // bytes of tensor data
  std::vector<std::string> left_out;  // parameters that no file of the checkpoint has
};

/// Exports the fp32 master weights if the checkpoint has them, else the values. Tied parameters are written
/// once, under their first name. Replaces an earlier export in the folder. Throws UserError, also if another
/// program has written a file there with a name that exports use.
ExportedModel export_checkpoint(checkpoint::FileSystem& files, checkpoint::SavedState& saved,
                                const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace zerorun::convert
