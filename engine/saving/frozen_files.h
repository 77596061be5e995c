// The files of frozen parameters in this rank's last checkpoint, to which the next one may link, and whether
// their content has changed. Owned by the checkpoint writer.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "base/process.h"
#include "checkpoint/state_file.h"

namespace zerorun {

class FrozenFiles {
 public:
  /// Names the published file for `file` to link to, if its content is still current. Does nothing if the
  /// file is not frozen. Its `digest` must be set.
  void find_published(checkpoint::FileToWrite& file) const;
  /// To be called before the frozen files of a save are written: what was published under their names counts
  /// no more.
  void start_save(std::span<const checkpoint::FileToWrite> files);
  void add(const std::string& name, checkpoint::PublishedFile file);
  /// To be called when the content of the file `name` is about to change. Any thread.
  void set_outdated(const std::string& name);
  void forget_all();
  /// How often the content of the file `name` may have changed so far, as far as set_outdated() and
  /// forget_all() were called.
  int64_t changes(const std::string& name) const;

 private:
  HomeProcess home_;
  mutable std::mutex mutex_;  // guards all that follows
  std::map<std::string, checkpoint::PublishedFile> published_;
  std::set<std::string> outdated_;  // names of published files whose content has changed since
  std::map<std::string, int64_t> changes_;
  int64_t all_changed_ = 0;  // times
};

}  // namespace zerorun
