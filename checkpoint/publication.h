// How a tag appears in a folder of checkpoints: whole, or not at all, whatever ends the writer. The steps and
// why each is needed: docs/checkpoint_format.md. Used by one thread of one rank.
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

/// Where the files of a tag go until it is published.
std::filesystem::path partial_folder(const std::filesystem::path& directory, const std::string& tag);

inline constexpr const char* kStepTag = "global_step";  // and a number: the tags that ZeroRun makes itself

/// A tag that is being written. Files go to folder(), each synced by its writer.
class Publication {
 public:
  /// Makes `directory` where it is missing, and in it an empty folder for the tag; what an earlier run left
  /// there is removed. Both outlive it. Throws UserError.
  Publication(FileSystem& files, std::filesystem::path directory, std::string tag);
  /// What was not published is removed, where that can be done.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  const std::filesystem::path& folder() const { return partial_; }
  /// All files are there and synced: with the manifest they become the tag, in place of an earlier one of
  /// that name. Returns when no crash can take it away. `save_latest`: the tag is what `latest` names from
  /// then on.
  void publish(const std::string& manifest, bool save_latest);
  /// Behind publish(): removes what the tag has replaced, and tags of ZeroRun's own making but for so many of
  /// the highest steps (0: none). Never throws: what cannot be removed is logged.
  void remove_old(int64_t keep_last) noexcept;

 private:
  void name_latest();
  void remove_tags(int64_t keep_last);

  FileSystem* files_;
  std::filesystem::path directory_;
  std::string tag_;
  std::filesystem::path partial_;
  bool published_ = false;
  bool replaced_ = false;  // partial_ is what was there before
};

/// Tags in the folder that have been published, sorted by name.
std::vector<std::string> published_tags(FileSystem& files, const std::filesystem::path& directory);
/// What `latest` names; absent where there is none.
std::optional<std::string> latest_tag(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun
