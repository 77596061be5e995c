// Publishes a tag in a folder of checkpoints atomically: even if the writer crashes, the folder has either
// the complete tag or nothing of it. docs/checkpoint_format.md explains the steps. Used by one thread of one
// rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

inline constexpr const char* kManifestName = "manifest.json";
/// The file in a tag's folder that tells ranks which save the folder is for, until the tag is published.
inline constexpr const char* kSaveIdName = ".save_id";

/// Throws UserError unless `tag` can be the name of a checkpoint's folder.
void check_tag(const std::string& tag);

/// The folder for a tag's files until the tag is published.
std::filesystem::path partial_folder(const std::filesystem::path& directory, const std::string& tag);

inline constexpr const char* kStepTag = "global_step";  // prefix of ZeroRun's own tags; the step follows
/// Returns the step of a tag that ZeroRun has named itself; absent for other tags.
std::optional<int64_t> step_of_tag(const std::string& tag);
/// Removes a published tag atomically: a crash leaves either the whole tag or none of it. Throws UserError.
void remove_tag(FileSystem& files, const std::filesystem::path& directory, const std::string& tag);

/// A tag that is being written. Writers create its files in folder() and sync them.
class Publication {
 public:
  /// Creates `directory` if it is missing, and an empty folder for the tag in it. Removes files that an
  /// earlier run left in that folder. `files` must outlive this object. Throws UserError.
  Publication(FileSystem& files, std::filesystem::path directory, std::string tag);
  /// Removes the tag's folder if the tag was not published; logs a warning if the removal fails.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  const std::filesystem::path& folder() const { return partial_; }
  /// Writes `save_id` into the folder, in the file kSaveIdName. Throws UserError.
  void mark(const std::string& save_id);
  /// Adds the manifest and publishes the tag, replacing an earlier tag of the same name. All files of the tag
  /// must be written and synced before. When it returns, no crash can undo the publication. With
  /// `save_latest`, the file `latest` then names this tag.
  void publish(const std::string& manifest, bool save_latest);
  /// Call it after publish(). Removes the tag that was replaced. With `keep_last` above 0, also removes older
  /// tags that ZeroRun has named itself: all except the `keep_last` tags with the highest steps, this tag,
  /// and the tag that `latest` names. Logs a warning if a removal fails. Never throws.
  void remove_old(int64_t keep_last) noexcept;

 private:
  void name_latest();
  void remove_tags(int64_t keep_last);

  FileSystem* files_;
  std::filesystem::path directory_;
  std::string tag_;
  std::filesystem::path partial_;
  bool marked_ = false;
  bool published_ = false;
  bool replaced_ = false;  // partial_ holds the tag that was replaced
};

/// Returns the published tags in the folder, sorted by name.
std::vector<std::string> published_tags(FileSystem& files, const std::filesystem::path& directory);
/// Returns the tag that the file `latest` names; absent if there is no such file.
std::optional<std::string> latest_tag(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun
