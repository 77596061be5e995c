// Which folders are checkpoints of ours, which files in them are ours, and how they are removed: only files
// that a manifest or a marker names, and never through a symbolic link. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

inline constexpr const char* kManifestName = "manifest.json";
/// The marker: a file in a folder whose checkpoint is not published yet.
inline constexpr const char* kMarkerName = ".save_id";
/// The marker's text for the save `id`.
std::string marker_text(const std::string& id);

/// The folder for a tag's files until the tag is published, or while it is removed. `id` is unique.
std::filesystem::path partial_folder(const std::filesystem::path& directory, const std::string& tag,
                                     const std::string& id);
/// Returns the tag of a folder that is named like a partial_folder(); absent for other names. Versions that
/// wrote manifests of version 1 used no id.
std::optional<std::string> tag_of_partial(const std::string& name);

struct OwnFolder {
  bool has_manifest = false;        // else it has a marker
  int64_t saving = 0;               // the saving number in the manifest; 0: unknown
  std::set<std::string> names;      // of files that are ours
  std::vector<std::string> others;  // names in the folder that are not ours, sorted
};
/// Describes the folder; absent if it has neither a manifest of ours nor a marker, cannot be read, or is a
/// link.
std::optional<OwnFolder> own_folder(FileSystem& files, const std::filesystem::path& folder);

/// Throws UserError unless a checkpoint may take the place of `folder`: if it is a link, is no checkpoint, or
/// holds more than a checkpoint.
void check_replaceable(FileSystem& files, const std::filesystem::path& folder);

/// Removes the folder, which must be one of ours, if it exists. Throws UserError, before anything is removed,
/// if it holds more.
void remove_own_folder(FileSystem& files, const std::filesystem::path& folder);

/// Removes what killed jobs have left in a folder of checkpoints. The caller must hold the folder's lock and
/// turn. Logs a warning for each leftover that cannot be removed.
void sweep(FileSystem& files, const std::filesystem::path& directory);

/// The names in `directory` that must not be removed because of symbolic links there: the links, and what
/// they name.
std::set<std::string> linked_names(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun
