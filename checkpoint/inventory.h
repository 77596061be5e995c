// Lists the tags in a folder of checkpoints, newest first, and chooses the tags that pruning removes. Used by
// one thread.
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
  complete,    // published, with a readable manifest and all files at their recorded length
  damaged,     // published, but the manifest is unreadable, or a file is missing or has another length
  unfinished,  // ".TAG.partial": being written, or left by a run that died
};

struct InventoryTag {
  std::string tag;
  std::filesystem::path folder;
  TagState state = TagState::complete;
  std::optional<Manifest> manifest = {};         // absent if unreadable or unfinished
  std::string problem = {};                      // why the tag is damaged
  int64_t bytes = 0;                             // of all files in the folder
  std::filesystem::file_time_type written = {};  // when the manifest, or else the folder, was last written
  bool is_latest = false;
};

/// Complete tags, then damaged, then unfinished ones, each sorted by falling generation, falling step, name.
/// Leaves out folders that are not checkpoints. Throws UserError if `directory` cannot be read.
std::vector<InventoryTag> list_tags(FileSystem& files, const std::filesystem::path& directory);

struct PruneOptions {
  int64_t keep = 1;        // tags with the highest steps
  int64_t keep_every = 0;  // above 0: also keep tags whose step is a multiple of this
};

struct PrunePlan {
  std::vector<InventoryTag> removed;
  std::vector<InventoryTag> kept;  // complete tags that stay
  int64_t freed_bytes = 0;         // without files that have hard links outside `removed`
};

/// Removes only complete tags that ZeroRun has named itself (global_stepN). Always keeps tags that `latest`
/// or a symbolic link names, and tags that are being written again.
PrunePlan plan_prune(FileSystem& files, const std::filesystem::path& directory, const PruneOptions& options);

/// The folder of one checkpoint: the folder of `tag` in `path`. If `tag` is empty: `path` itself if it has a
/// manifest, else the folder of the tag that `latest` names. Throws UserError listing the existing tags.
std::filesystem::path checkpoint_folder(FileSystem& files, const std::filesystem::path& path,
                                        const std::string& tag);

}  // namespace zerorun
