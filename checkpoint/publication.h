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

inline constexpr const char* kStepTag = "global_step";  // with a number: tags that ZeroRun chooses itself
/// The step of a tag that ZeroRun has named itself.
std::optional<int64_t> step_of_tag(const std::string& tag);
/// Removes a published tag: it disappears at once, so that no crash leaves a part of it. Throws UserError.
void remove_tag(FileSystem& files, const std::filesystem::path& directory, const std::string& tag);

/// A tag that is being written. Files go to folder(); each writer syncs its own.
class Publication {
 public:
  /// Creates `directory` if it is missing, and an empty folder for the tag in it, where it removes what an
  /// earlier run left. `files` must outlive it. Throws UserError.
  Publication(FileSystem& files, std::filesystem::path directory, std::string tag);
  /// Removes the tag's folder if it was not published; logs a warning if that fails.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  const std::filesystem::path& folder() const { return partial_; }
  /// Publishes the tag, once all of its files are written and synced: adds the manifest, and replaces an
  /// earlier tag of that name. When it returns, no crash can undo it. `save_latest`: `latest` then names this
  /// tag.
  void publish(const std::string& manifest, bool save_latest);
  /// After publish(): removes the tag that was replaced. With `keep_last` above 0, also removes tags that
  /// ZeroRun has named itself, except the `keep_last` with the highest steps, this one and `latest`. Never
  /// throws: what cannot be removed is logged.
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
