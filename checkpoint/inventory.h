// What a folder of checkpoints has: its tags, newest first, and which of them pruning removes. Used by one
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"

namespace zerorun {

enum class TagState {
  complete,    // published, and its manifest can be read
  damaged,     // its manifest cannot be read, or a file is missing or has another length
  unfinished,  // ".TAG.partial": being written, or left by a run that died
};

struct InventoryTag {
  std::string tag;
  std::filesystem::path folder;
  TagState state = TagState::complete;
  std::optional<Manifest> manifest = {};         // absent if it cannot be read
  std::string problem = {};                      // of a damaged one
  int64_t bytes = 0;                             // of all files in the folder
  std::filesystem::file_time_type written = {};  // when the manifest, or else the folder, was last written
  bool is_latest = false;
};

/// Complete tags by falling step, then damaged and unfinished ones by name. Other folders are left out.
/// Throws UserError if `directory` cannot be read.
std::vector<InventoryTag> list_tags(FileSystem& files, const std::filesystem::path& directory);

struct PruneOptions {
  int64_t keep = 1;        // tags with the highest steps
  int64_t keep_every = 0;  // above 0: also tags whose step is a multiple of it
};

struct PrunePlan {
  std::vector<InventoryTag> removed;
  std::vector<InventoryTag> kept;  // complete tags that stay
  int64_t freed_bytes = 0;         // without files that kept tags have too (hard links)
};

/// Chooses among complete tags that ZeroRun has named itself (global_stepN). `latest`, tags that are being
/// written again, and tags that a symbolic link names always stay.
PrunePlan plan_prune(FileSystem& files, const std::filesystem::path& directory, const PruneOptions& options);

/// The folder of one checkpoint: `path` itself if it has a manifest, else the tag in it that `tag` or, if
/// that is empty, `latest` names. Throws UserError that lists the tags there are.
std::filesystem::path checkpoint_folder(FileSystem& files, const std::filesystem::path& path,
                                        const std::string& tag);

}  // namespace zerorun
