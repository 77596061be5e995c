// Makes a tag appear in a folder of checkpoints atomically: whole or not at all, even if the writer crashes.
// The steps and why each is needed: docs/checkpoint_format.md. Used by one thread of one rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

inline constexpr const char* kManifestName = "manifest.json";

/// Throws UserError unless `tag` can be the name of a checkpoint's folder.
void check_tag(const std::string& tag);

/// The folder for a tag's files until the tag is published.
std::filesystem::path partial_folder(const std::filesystem::path& directory, const std::string& tag);

inline constexpr const char* kStepTag = "global_step";  // ZeroRun's own tags: this and the step
/// The step of a tag that ZeroRun has named itself.
std::optional<int64_t> step_of_tag(const std::string& tag);
/// Removes a published tag. The tag disappears atomically: no crash leaves a part of it. Throws UserError.
void remove_tag(FileSystem& files, const std::filesystem::path& directory, const std::string& tag);

/// A tag that is being written. Writers create its files in folder() and sync them.
class Publication {
 public:
  /// Creates `directory` if it is missing, and in it an empty folder for the tag. Removes files that an
  /// earlier run left in that folder. `files` must outlive this object. Throws UserError.
  Publication(FileSystem& files, std::filesystem::path directory, std::string tag);
  /// Removes the tag's folder if the tag was not published; logs a warning if the removal fails.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  const std::filesystem::path& folder() const { return partial_; }
  /// Adds the manifest and publishes the tag, replacing an earlier tag of the same name. All files of the tag
  /// must be written and synced. After the return, no crash can undo the publication. `save_latest`: makes
  /// `latest` name this tag.
  void publish(const std::string& manifest, bool save_latest);
  /// After publish(): removes the tag that was replaced. With `keep_last` above 0, also removes tags that
  /// ZeroRun has named itself, except the `keep_last` tags with the highest steps, this tag and the tag that
  /// `latest` names. Never throws: logs a warning if a removal fails.
  void remove_old(int64_t keep_last) noexcept;

 private:
  void name_latest();
  void remove_tags(int64_t keep_last);

  FileSystem* files_;
  std::filesystem::path directory_;
  std::string tag_;
  std::filesystem::path partial_;
  bool published_ = false;
  bool replaced_ = false;  // partial_ holds the tag that was replaced
};

/// Tags in the folder that have been published, sorted by name.
std::vector<std::string> published_tags(FileSystem& files, const std::filesystem::path& directory);
/// The tag that `latest` names; absent if there is no `latest`.
std::optional<std::string> latest_tag(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun
