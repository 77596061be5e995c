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

namespace zerorun::checkpoint {

enum class TagState {
  complete,    // published; the manifest is readable and all files have their recorded length
  damaged,     // published; the manifest is unreadable, or a file is missing or has another length
  unfinished,  // ".TAG.ID.partial": being written, or left by a run that ended during a save
};

struct InventoryTag {
  std::string tag;
  std::filesystem::path folder;
  TagState state = TagState::complete;
  std::optional<Manifest> manifest = {};  // absent if unreadable or unfinished
  std::string problem = {};               // why the tag is damaged
  int64_t bytes = 0;                      // total size of the files in the folder
  /// The time of the last write to the manifest or, if the tag has no manifest, to the folder.
  std::filesystem::file_time_type written = {};
  bool is_latest = false;
  FileIdentity identity = {};  // of the folder
};

/// Lists complete tags, then damaged, then unfinished ones. Within each state, the tag that was saved last
/// comes first; tags whose manifest does not tell (version 1) come after the others, by descending
/// generation, then descending step, then name. Folders that are not checkpoints are left out. Throws
/// UserError if `directory` cannot be read or is a checkpoint itself.
std::vector<InventoryTag> list_tags(FileSystem& files, const std::filesystem::path& directory);

struct PruneOptions {
  int64_t keep = 1;        // how many tags to keep: those that were saved last
  int64_t keep_every = 0;  // if above 0: also keep tags whose step is a multiple of keep_every
};

struct PrunePlan {
  std::vector<InventoryTag> removed;
  std::vector<InventoryTag> kept;  // complete tags that stay
  int64_t freed_bytes = 0;         // not counting files that have hard links outside `removed`
};

/// Plans to remove the old_tags(); neither counts nor removes damaged tags, and keeps tags that are being
/// written anew. Throws UserError if `latest` names no checkpoint of the folder.
PrunePlan plan_prune(FileSystem& files, const std::filesystem::path& directory, const PruneOptions& options);
/// Removes the tags. Tags that cannot be removed, or were saved anew since the plan, move to `kept`, with a
/// warning for each. Returns whether all were removed.
bool prune(FileSystem& files, const std::filesystem::path& directory, PrunePlan& plan);

/// Returns the folder of one checkpoint in `path`. This is the folder of `tag` if `tag` is not empty.
/// Otherwise it is `path` itself if it has a manifest, else the folder of the tag that `latest` names. If
/// there is no such folder, throws UserError, which lists the existing tags.
std::filesystem::path checkpoint_folder(FileSystem& files, const std::filesystem::path& path,
                                        const std::string& tag);

}  // namespace zerorun::checkpoint
