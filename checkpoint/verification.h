// Verifies a checkpoint: compares every block of every file with its checksum, and checks that the files have
// each element of each parameter exactly once. Called from one thread; starts several threads itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::checkpoint {

struct Damage {
  std::string file;    // empty: the checkpoint as a whole
  int64_t block = -1;  // index of a block of kChecksumBlock bytes; -1: the damage is not in a single block
  std::string what;    // "differs from its checksum: h.0.weight (value, exp_avg)"
};

/// The part of the files that one of several verifiers reads.
struct VerifiedPart {
  int64_t first = 0;            // the number of the first file, in the order of names
  int64_t every = 1;            // and then every so-manieth one
  bool may_be_missing = false;  // files may be on another host
};

struct Verification {
  std::string manifest_checksum;  // two checkpoints with the same one say the same
  int64_t files = 0;
  int64_t bytes = 0;  // bytes read
  std::vector<Damage> damages;
  bool passed() const { return damages.empty(); }
};

/// `folder` is a tag's folder. Uses one block of memory per thread. Throws UserError if the manifest is
/// unreadable.
Verification verify_checkpoint(FileSystem& files, const std::filesystem::path& folder,
                               const VerifiedPart& part = {});

}  // namespace zerorun::checkpoint
