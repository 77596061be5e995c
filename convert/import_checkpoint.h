// Converts a DeepSpeed checkpoint to a ZeroRun checkpoint. Used by one thread. Memory use is bounded by
// kImportFileBytes plus the description of the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/file_system.h"
#include "convert/deepspeed_checkpoint.h"

namespace zerorun {

inline constexpr int64_t kImportFileBytes = int64_t{32} << 20;  // data per file, which is held in memory

struct ImportOptions {
  std::string tag;  // empty: use the source's tag
  /// Called with the bytes written so far.
  std::function<void(int64_t)> progress = [](int64_t) {};
};

struct ImportedCheckpoint {
  std::filesystem::path folder;
  int64_t bytes = 0;
  int64_t files = 0;
};

/// Publishes `source` as a tag in `directory`, and makes the file `latest` name this tag. Throws UserError.
/// If writing the files fails, `directory` has no new tag.
ImportedCheckpoint import_checkpoint(FileSystem& files, const DeepSpeedCheckpoint& source,
                                     const std::filesystem::path& directory, const ImportOptions& options);

}  // namespace zerorun
