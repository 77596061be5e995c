#include "checkpoint/publication.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/json_text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/old_tags.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLatest = "latest";
constexpr size_t kLongestTag = 200;

// Removes a trailing slash, because parent_path() of "a/b/" is "a/b".
fs::path without_slash(fs::path folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

}  // namespace

void check_tag(const std::string& tag) {
  const bool has_control = std::ranges::any_of(tag, [](unsigned char c) { return std::iscntrl(c) != 0; });
  const bool named = !tag.empty() && tag.size() <= kLongestTag && tag.front() != '.' && tag != kLatest &&
                     tag.find('/') == std::string::npos && !has_control && is_json_text(tag);
  if (named) return;
  std::string shown;
  for (const char c : tag) shown += std::iscntrl(static_cast<unsigned char>(c)) != 0 ? '?' : c;
  throw UserError("checkpoint tag \"" + shown +
                  "\": expected the name of a folder in UTF-8, without '/' and control characters, at most " +
                  std::to_string(kLongestTag) + " bytes, not \"latest\", and no '.' in front");
}

std::optional<int64_t> step_of_tag(const std::string& tag) {
  constexpr size_t kMostDigits = 18;
  const std::string prefix = kStepTag;
  const std::string digits = tag.starts_with(prefix) ? tag.substr(prefix.size()) : "";
  const bool is_number = !digits.empty() && digits.size() <= kMostDigits &&
                         std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; });
  return is_number ? std::optional<int64_t>(std::stoll(digits)) : std::nullopt;
}

Publication::Publication(FileSystem& files, fs::path directory, std::string tag, std::string id,
                         const std::function<void()>& waiting)
    : files_(&files),
      directory_(without_slash(std::move(directory))),
      tag_(std::move(tag)),
      id_(std::move(id)) {
  check_tag(tag_);
  partial_ = partial_folder(directory_, tag_, id_);
  make_folders(files, directory_);
  lock_ = files.lock_folder(directory_);
  take_turn(waiting);
  check_replaceable(files, directory_ / tag_);
  if (lock_->is_locked() && !lock_->is_swept) sweep(files, directory_, waiting);
  lock_->is_swept = true;
  saving_ = next_saving(waiting);
  check_done(files.make_folder(partial_), partial_, "made");
  // Other ranks of this host write into the folder as soon as they see the marker, so nothing may fail after
  // it appears: then the folder would be left behind with their files.
  const fs::path marker = partial_ / kMarkerName;
  const fs::path unfinished = partial_ / kUnfinishedMarker;
  try {
    write_text(files, unfinished, marker_text(id_));
    check_done(files.rename(unfinished, marker), unfinished, "renamed to " + marker.string());
  } catch (...) {
    files.remove_file(unfinished);
    files.remove_folder(partial_);
    throw;
  }
}

Publication::~Publication() {
  try {
    remove_partial();
  } catch (const std::exception& error) {
    log_warning(std::string("the remains of a checkpoint cannot be removed: ") + error.what());
  }
}

void Publication::remove_partial() {
  if (std::exchange(has_rest_, false)) remove_own_folder(*files_, partial_);
}

// Ends: the publication that has the turn ends within the time limits of its own ranks.
void Publication::take_turn(const std::function<void()>& waiting) {
  constexpr std::chrono::milliseconds kPoll(50);
  turn_ = std::unique_lock(lock_->turn(), std::defer_lock);
  while (!turn_.try_lock_for(kPoll)) {
    if (waiting) waiting();
  }
}

// Reads the folder's manifests only if other jobs may have saved since.
int64_t Publication::next_saving(const std::function<void()>& waiting) {
  int64_t newest = 0;
  if (lock_->is_locked() && lock_->newest_saving) {
    newest = *lock_->newest_saving;
  } else {
    for (const std::string& name : files_->list(directory_).value_or(std::vector<std::string>())) {
      if (waiting) waiting();
      if (const auto own = own_folder(*files_, directory_ / name)) newest = std::max(newest, own->saving);
    }
  }
  lock_->newest_saving = newest + 1;
  return newest + 1;
}

// A network file system may show the files of other hosts some seconds late.
void Publication::check_files(const std::set<std::string>& expected, bool has_all) const {
  constexpr std::chrono::seconds kLongestDelay(5);
  constexpr std::chrono::milliseconds kPoll(50);
  const auto end = std::chrono::steady_clock::now() + kLongestDelay;
  while (true) {
    std::set<std::string> missing = expected;
    const auto names = files_->list(partial_);
    if (!names) {
      throw UserError(partial_.string() +
                      " is gone, which another program must have removed: no checkpoint is published");
    }
    for (const std::string& name : *names) {
      if (name == kManifestName || name == kMarkerName || missing.erase(name) > 0) continue;
      throw UserError(partial_.string() + " holds " + name +
                      ", which another program must have put there: no checkpoint is published");
    }
    if (missing.empty() || !has_all) return;
    if (std::chrono::steady_clock::now() >= end) {
      throw UserError((partial_ / *missing.begin()).string() +
                      " is gone, which another program must have removed: no checkpoint is published");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void Publication::publish(const std::string& manifest, bool save_latest, bool has_all) {
  const auto outline = outline_of(manifest);
  ZR_CHECK(outline.has_value(), "no manifest");
  check_files(outline->files, has_all);
  write_text(*files_, partial_ / kManifestName, manifest);
  check_done(files_->sync_folder(partial_), partial_, "synced");
  check_replaceable(*files_, directory_ / tag_);
  lock_->check();
  check_files(outline->files, has_all);
  const bool has_replaced = place();
  has_rest_ = false;
  check_done(files_->sync_folder(directory_), directory_, "synced");
  has_rest_ = has_replaced;
  lock_->newest_saving = std::max(lock_->newest_saving.value_or(0), outline->saving);
  files_->remove_file(directory_ / tag_ / kMarkerName);  // harmless if it stays
  if (save_latest) name_latest();
}

// Where file systems have no locks, another job may publish or remove the same tag at the same time. Returns
// whether partial_ holds an earlier tag now.
bool Publication::place() {
  const fs::path folder = directory_ / tag_;
  constexpr int kTries = 4;
  for (int tries = 1;; ++tries) {
    const bool exists = files_->list(folder).has_value();
    const int done = exists ? files_->exchange(partial_, folder) : files_->rename(partial_, folder);
    const bool has_changed = exists ? done == -ENOENT : done == -EEXIST || done == -ENOTEMPTY;
    if (has_changed && tries < kTries) continue;
    check_done(done, exists ? folder : partial_,
               exists ? "replaced (is this file system a local one?)" : "renamed to " + folder.string());
    return exists;
  }
}

void Publication::remove_old(int64_t keep_last) noexcept {
  try {
    remove_partial();
    if (keep_last <= 0) return;
    const int64_t others = keep_last - (step_of_tag(tag_) ? 1 : 0);
    for (const OldTag& old : old_tags(*files_, directory_, others, {tag_}))
      try_remove_tag(*files_, directory_, old);
  } catch (const std::exception& error) {
    log_warning(std::string("an old checkpoint cannot be removed: ") + error.what());
  }
}

void Publication::name_latest() {
  const fs::path partial = partial_folder(directory_, kLatest, id_);
  const fs::path latest = directory_ / kLatest;
  try {
    write_text(*files_, partial, tag_ + "\n");
    check_done(files_->rename(partial, latest), partial, "renamed to " + latest.string());
  } catch (...) {
    files_->remove_file(partial);
    throw;
  }
  check_done(files_->sync_folder(directory_), directory_, "synced");
}

std::vector<std::string> published_tags(FileSystem& files, const fs::path& directory) {
  std::vector<std::string> tags;
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    if (name.front() == '.' || name == kLatest) continue;
    if (is_checkpoint(files, directory / name)) tags.push_back(name);
  }
  return tags;
}

std::vector<std::string> tags_by_age(FileSystem& files, const fs::path& directory) {
  struct Found {
    std::string tag;
    int64_t saving, step;
  };
  const auto names = files.list(directory);
  if (!names && files.identity(directory))
    throw UserError(directory.string() + ": cannot be read: expected a folder of checkpoints");
  if (names && is_checkpoint(files, directory))
    throw UserError(directory.string() + " is a checkpoint itself: give the folder above it");
  std::vector<Found> found;
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    const auto entries = files.list(directory / name);
    if (name.front() == '.' || !entries) continue;
    const auto text = std::ranges::count(*entries, kManifestName) > 0
                          ? read_text(files, directory / name / kManifestName)
                          : std::nullopt;
    const auto outline = text ? outline_of(*text) : std::nullopt;
    const auto step = step_of_tag(name);
    if (!text && !step) continue;  // another folder of the program
    found.push_back({.tag = name,
                     .saving = outline ? outline->saving : std::numeric_limits<int64_t>::max(),
                     .step = step.value_or(0)});
  }
  std::ranges::sort(found, std::greater<>(),
                    [](const Found& one) { return std::pair(one.saving, one.step); });
  std::vector<std::string> tags;
  for (Found& one : found) tags.push_back(std::move(one.tag));
  return tags;
}

std::optional<std::string> tag_in_file(FileSystem& files, const fs::path& file) {
  constexpr int64_t kMostBytes = 4096;
  std::optional<std::string> text = read_text(files, file, kMostBytes);
  if (!text) return std::nullopt;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  if (text->starts_with(kMark)) text->erase(0, kMark.size());
  const size_t begin = std::min(text->find_first_not_of(kBlanks), text->size());
  *text = text->substr(begin, text->find_last_not_of(kBlanks) + 1 - begin);
  try {
    check_tag(*text);
  } catch (const UserError& error) {
    throw UserError(file.string() + " names no checkpoint: " + error.what());
  }
  return text;
}

std::optional<std::string> latest_tag(FileSystem& files, const fs::path& directory) {
  return tag_in_file(files, directory / kLatest);
}

}  // namespace zerorun::checkpoint
