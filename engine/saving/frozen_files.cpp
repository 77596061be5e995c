#include "engine/saving/frozen_files.h"

#include <utility>

namespace zerorun {

void FrozenFiles::find_published(checkpoint::FileToWrite& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = published_.find(file.name);
  if (!file.is_frozen || found == published_.end() || outdated_.contains(file.name)) return;
  if (found->second.digest == file.digest) file.published = found->second;
}

void FrozenFiles::start_save(std::span<const checkpoint::FileToWrite> files) {
  const std::lock_guard lock(mutex_);
  for (const checkpoint::FileToWrite& file : files) {
    if (!file.is_frozen) continue;
    published_.erase(file.name);
    outdated_.erase(file.name);
  }
}

void FrozenFiles::add(const std::string& name, checkpoint::PublishedFile file) {
  const std::lock_guard lock(mutex_);
  published_[name] = std::move(file);
}

void FrozenFiles::set_outdated(const std::string& name) {
  if (!home_.is_current()) return;  // in a forked child the mutex may be locked for ever
  const std::lock_guard lock(mutex_);
  outdated_.insert(name);
  ++changes_[name];
}

void FrozenFiles::forget_all() {
  const std::lock_guard lock(mutex_);
  published_.clear();
  ++all_changed_;
}

int64_t FrozenFiles::changes(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = changes_.find(name);
  return all_changed_ + (found == changes_.end() ? 0 : found->second);
}

}  // namespace zerorun
