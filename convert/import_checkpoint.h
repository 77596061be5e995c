// Converts a DeepSpeed checkpoint to a ZeroRun checkpoint. Used by one thread. Memory use is bounded by
// kImportFileBytes plus the description of the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/file_system.h"
#include "convert/deepspeed_checkpoint.h"

namespace zerorun::convert {

inline constexpr int64_t kImportFileBytes = int64_t{32} << 20;  // data per file; held in memory

struct ImportedCheckpoint {
  std::filesystem::path folder;
  int64_t bytes = 0;
  int64_t files = 0;
};

/// Publishes `source` in `directory` as `tag` (empty: the source's tag), and makes the file `latest` name
/// this tag. Throws UserError, also if the tag exists and `replaces` is false, or if `directory` is the
/// folder of the source, whose own `latest` would be lost. If writing the files fails, `directory` has no new
/// tag.
ImportedCheckpoint import_checkpoint(checkpoint::FileSystem& files, const DeepSpeedCheckpoint& source,
                                     const std::filesystem::path& directory, const std::string& tag,
                                     bool replaces = false);

}  // namespace zerorun::convert
