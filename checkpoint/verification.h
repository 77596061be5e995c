// Verifies a checkpoint: every block of every file against its checksum, and that the files have each
// parameter's elements exactly once. Uses several threads; called from one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

struct Damage {
  std::string file;    // empty: the checkpoint as a whole
  int64_t block = -1;  // index, in blocks of kChecksumBlock bytes; -1: no single block
  std::string what;    // "differs from its checksum: h.0.weight (value, exp_avg)"
};

struct Verification {
  int64_t files = 0;
  int64_t bytes = 0;  // read
  std::vector<Damage> damages;
  bool passed() const { return damages.empty(); }
};

/// `folder`: a tag's folder. Memory: a block for each thread. Throws UserError if the manifest is unreadable.
Verification verify_checkpoint(FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun
