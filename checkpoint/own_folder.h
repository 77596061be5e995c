// Which folders are checkpoints of ours, which files in them are ours, and how they are removed: only files
// that a manifest or a marker names, and never through a symbolic link. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
/// The marker: a file in a folder whose checkpoint is not published yet. It names the save and its host.
inline constexpr const char* kMarkerName = ".save_id";
inline constexpr const char* kUnfinishedMarker =
    ".save_id.unfinished";  // until the marker is written and synced
/// Returns 16 random hexadecimal digits.
std::string new_save_id();
/// The marker's text for a save `id` of this host.
std::string marker_text(const std::string& id);
/// Whether the folder's marker names the save `id`, of any host.
bool is_marked(FileSystem& files, const std::filesystem::path& folder, const std::string& id);

/// The folder for a tag's files until the tag is published, or while it is removed. `id` is unique.
std::filesystem::path partial_folder(const std::filesystem::path& directory, const std::string& tag,
                                     const std::string& id);
/// Returns the tag of a folder that is named like a partial_folder(); absent for other names. Versions that
/// wrote manifests of version 1 used no id.
std::optional<std::string> tag_of_partial(const std::string& name);

/// Whether the folder has a manifest of ours. `folder` may be a link.
bool is_checkpoint(FileSystem& files, const std::filesystem::path& folder);

/// A folder that is open. Closed by the destructor.
class OpenFolder {
 public:
  /// Fails if `path` is a symbolic link.
  OpenFolder(FileSystem& files, const std::filesystem::path& path)
      : files_(&files), folder_(files.open_folder(path)) {}
  ~OpenFolder() {
    if (folder_ >= 0) files_->close(folder_);
  }
  OpenFolder(OpenFolder&& other) noexcept : files_(other.files_), folder_(std::exchange(other.folder_, -1)) {}
  OpenFolder& operator=(OpenFolder&&) = delete;

  int number() const { return folder_; }  // below 0: not open
  /// The text of a file in the folder; empty if it cannot be read, or has more than `most_bytes`.
  std::string text(const std::string& name, int64_t most_bytes = kMostTextBytes) const;

 private:
  FileSystem* files_;
  int folder_;
};

struct OwnFolder {
  OpenFolder folder;
  bool has_manifest = false;             // else it has a marker
  int64_t saving = 0;                    // the saving number in the manifest; 0: unknown
  std::string marker = {};               // the marker's text; empty: none
  std::set<std::string> names = {};      // of files that are ours
  std::vector<std::string> others = {};  // names in the folder that are not ours, sorted
};
/// Describes the folder; absent if it has neither a manifest of ours nor a marker, cannot be read, or is a
/// link.
std::optional<OwnFolder> own_folder(FileSystem& files, const std::filesystem::path& folder);

/// Says what the folder holds besides the checkpoint.
std::string more_than_a_checkpoint(const std::filesystem::path& folder, const OwnFolder& own);

/// Throws UserError unless a checkpoint may take the place of `folder`: if it is a link, is no checkpoint, or
/// holds more than a checkpoint.
void check_replaceable(FileSystem& files, const std::filesystem::path& folder);

/// Removes the folder, which must be one of ours, if it exists. Throws UserError, before anything is removed,
/// if it holds more. No other job may be about to rename the folder.
void remove_own_folder(FileSystem& files, const std::filesystem::path& folder);

/// Removes what killed jobs have left in a folder of checkpoints. The caller must hold the folder's lock and
/// turn. Because some locks hold on one host only, leaves what a job of another host may still need:
/// leftovers less than a day old whose marker does not name this host. Logs a warning for each leftover that
/// cannot be removed. Calls `waiting` often.
void sweep(FileSystem& files, const std::filesystem::path& directory, const std::function<void()>& waiting);

}  // namespace zerorun::checkpoint
