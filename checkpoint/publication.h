// Publishes a tag in a folder of checkpoints atomically: even if the writer crashes, the folder has either
// the complete tag or nothing of it. docs/checkpoint_format.md explains the steps. Used by one thread of one
// rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/own_folder.h"

namespace zerorun::checkpoint {

/// Throws UserError unless `tag` can be the name of a checkpoint's folder.
void check_tag(const std::string& tag);

inline constexpr const char* kStepTag = "global_step";  // prefix of ZeroRun's own tags; the step follows
/// Returns the step of a tag that ZeroRun has named itself; absent for other tags.
std::optional<int64_t> step_of_tag(const std::string& tag);

/// A tag that is being written. Writers create its files in folder() and sync them.
class Publication {
 public:
  /// Creates `directory` if it is missing, takes its lock, waits until no other publication of this process
  /// writes there, and creates a folder for the tag. `id` (new_save_id()) tells this save from all others.
  /// `files` must outlive this object. Calls `waiting` about every 50 ms while it waits or reads the folder;
  /// an exception of it ends that. Throws UserError.
  Publication(FileSystem& files, std::filesystem::path directory, std::string tag,
              std::string id = new_save_id(), const std::function<void()>& waiting = {});
  /// Removes the tag's folder if the tag was not published, and the tag that was replaced if remove_old() was
  /// not called; logs a warning if the removal fails.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  const std::filesystem::path& folder() const { return partial_; }
  const std::string& id() const { return id_; }
  /// The lock of the directory, which is released when no one keeps it.
  const std::shared_ptr<FolderLock>& lock() const { return lock_; }
  /// The number for the manifest (Manifest::saving); a higher one will do too.
  int64_t saving() const { return saving_; }

  /// Adds the manifest and publishes the tag, replacing an earlier tag of the same name. All files of the tag
  /// must be written and synced before. When it returns, no crash can undo the publication. With
  /// `save_latest`, the file `latest` then names this tag. `has_all`: all files of the manifest must be in
  /// the folder, not only some. Throws UserError if the folder holds other files than the manifest names,
  /// because another program has removed or added some.
  void publish(const std::string& manifest, bool save_latest, bool has_all = true);
  /// Call it after publish(). Removes the tag that was replaced. With `keep_last` above 0, also removes the
  /// old_tags(), so that this tag and `keep_last` - 1 others stay (if this tag has a name of the program's
  /// own: `keep_last` others). Logs a warning if a removal fails. Never throws.
  void remove_old(int64_t keep_last) noexcept;

 private:
  void take_turn(const std::function<void()>& waiting);
  int64_t next_saving(const std::function<void()>& waiting);
  void check_files(const std::set<std::string>& expected, bool has_all) const;
  bool place();
  void name_latest();
  void remove_partial();

  FileSystem* files_;
  std::filesystem::path directory_;
  std::string tag_;
  std::string id_;
  std::filesystem::path partial_;
  std::shared_ptr<FolderLock> lock_;
  std::unique_lock<std::timed_mutex> turn_;
  int64_t saving_ = 0;
  // partial_ is to be removed: it has the files of a tag that is not published, or the tag that was replaced.
  bool has_rest_ = true;
};

/// Returns the published tags in the folder, sorted by name.
std::vector<std::string> published_tags(FileSystem& files, const std::filesystem::path& directory);
/// Returns the tags in the folder from which a run may continue, the one that was saved last first. Also
/// names folders that look like a tag whose manifest is missing or unreadable, before the others: when they
/// were saved is not known. Throws UserError if the folder cannot be read or is a checkpoint itself; a folder
/// that does not exist has no tags.
std::vector<std::string> tags_by_age(FileSystem& files, const std::filesystem::path& directory);
/// Returns the tag that `file`, such as `latest`, names, without white space and a byte order mark around it;
/// absent if there is no such file. Throws UserError if it names none.
std::optional<std::string> tag_in_file(FileSystem& files, const std::filesystem::path& file);
/// As tag_in_file(), for the file `latest` of a folder of checkpoints.
std::optional<std::string> latest_tag(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun::checkpoint
