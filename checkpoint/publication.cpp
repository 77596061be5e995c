#include "checkpoint/publication.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "checkpoint/json_text.h"
#include "checkpoint/manifest.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLatest = "latest";
constexpr size_t kLongestTag = 200;

// Removes a trailing slash, because parent_path() of "a/b/" is "a/b".
fs::path without_slash(fs::path folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

int64_t saving_of(FileSystem& files, const fs::path& folder) {
  const auto own = own_folder(files, folder);
  return own ? own->saving : 0;
}

}  // namespace

std::string new_save_id() {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(random_bits()));
  return digits.data();
}

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
  if (lock_->is_locked() && !std::exchange(lock_->is_swept, true)) sweep(files, directory_);
  saving_ = next_saving();
  check_done(files.make_folder(partial_), partial_, "made");
  try {
    // Not synced: without its marker, a leftover of a crash of the system stays, which harms nothing.
    const std::string text = marker_text(id_);
    OpenFile::create(files, partial_ / kMarkerName).write(std::as_bytes(std::span(text)), 0);
  } catch (...) {
    files.remove_file(partial_ / kMarkerName);
    files.remove_folder(partial_);
    throw;
  }
}

Publication::~Publication() {
  if (published_) return;
  try {
    remove_own_folder(*files_, partial_);
  } catch (const std::exception& error) {
    log_warning(std::string("the remains of a failed checkpoint cannot be removed: ") + error.what());
  }
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
int64_t Publication::next_saving() {
  int64_t newest = 0;
  if (lock_->is_locked() && lock_->newest_saving) {
    newest = *lock_->newest_saving;
  } else {
    for (const std::string& name : files_->list(directory_).value_or(std::vector<std::string>()))
      newest = std::max(newest, saving_of(*files_, directory_ / name));
  }
  lock_->newest_saving = newest + 1;
  return newest + 1;
}

// A network file system may show the files of other hosts some seconds late.
void Publication::check_files(const std::string& manifest, bool has_all) const {
  constexpr std::chrono::seconds kLongestDelay(5);
  constexpr std::chrono::milliseconds kPoll(50);
  const auto outline = outline_of(manifest);
  ZR_CHECK(outline.has_value(), "no manifest");
  const auto end = std::chrono::steady_clock::now() + kLongestDelay;
  while (true) {
    std::set<std::string> missing = outline->files;
    for (const std::string& name : files_->list(partial_).value_or(std::vector<std::string>())) {
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
  check_files(manifest, has_all);
  write_text(*files_, partial_ / kManifestName, manifest);
  check_done(files_->remove_file(partial_ / kMarkerName), partial_ / kMarkerName, "removed");
  check_done(files_->sync_folder(partial_), partial_, "synced");
  check_replaceable(*files_, directory_ / tag_);
  place();
  published_ = true;
  check_done(files_->sync_folder(directory_), directory_, "synced");
  if (save_latest) name_latest();
}

// Where file systems have no locks, another job may publish or remove the same tag at the same time.
void Publication::place() {
  const fs::path folder = directory_ / tag_;
  constexpr int kTries = 4;
  for (int tries = 1;; ++tries) {
    const bool exists = files_->list(folder).has_value();
    const int done = exists ? files_->exchange(partial_, folder) : files_->rename(partial_, folder);
    replaced_ = exists && done >= 0;
    const bool has_changed = exists ? done == -ENOENT : done == -EEXIST || done == -ENOTEMPTY;
    if (has_changed && tries < kTries) continue;
    if (exists) return check_done(done, folder, "replaced (is this file system a local one?)");
    return check_done(done, partial_, "renamed to " + folder.string());
  }
}

void Publication::remove_old(int64_t keep_last) noexcept {
  try {
    if (replaced_) remove_own_folder(*files_, partial_);
    if (keep_last > 0) remove_tags(keep_last);
  } catch (const std::exception& error) {
    log_warning(std::string("an old checkpoint cannot be removed: ") + error.what());
  }
}

// Renames the tag's folder before it removes the files. Otherwise readers could take a folder with some of
// the files for a complete tag.
void remove_tag(FileSystem& files, const fs::path& directory, const std::string& tag) {
  const fs::path folder = directory / tag;
  check_replaceable(files, folder);
  const auto manifest = read_text(files, folder / kManifestName);
  const fs::path gone = partial_folder(directory, tag, new_save_id());
  check_done(files.rename(folder, gone), folder, "removed");
  if (read_text(files, gone / kManifestName) != manifest) {
    check_done(files.rename(gone, folder), gone, "renamed to " + folder.string());
    throw UserError(folder.string() + " has been saved anew meanwhile: it stays");
  }
  check_done(files.sync_folder(directory), directory, "synced");
  remove_own_folder(files, gone);
}

void Publication::remove_tags(int64_t keep_last) {
  const auto latest = latest_to_keep(*files_, directory_);
  const std::set<std::string> linked = linked_names(*files_, directory_);
  std::vector<std::tuple<int64_t, int64_t, std::string>> newest_first;  // by saving number, then by step
  for (const std::string& name : files_->list(directory_).value_or(std::vector<std::string>())) {
    const auto step = step_of_tag(name);
    if (!step || files_->link_target(directory_ / name)) continue;
    const auto own = own_folder(*files_, directory_ / name);
    if (own && own->has_manifest) newest_first.emplace_back(own->saving, *step, name);
  }
  std::ranges::sort(newest_first, std::greater<>());
  for (size_t index = static_cast<size_t>(keep_last); index < newest_first.size(); ++index) {
    const std::string& tag = std::get<2>(newest_first[index]);
    if (tag == tag_ || tag == latest || linked.contains(tag)) continue;
    try {
      remove_tag(*files_, directory_, tag);
    } catch (const UserError& error) {
      log_warning(std::string("an old checkpoint is not removed: ") + error.what());
    }
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
    const auto manifest = read_text(files, directory / name / kManifestName);
    if (manifest && outline_of(*manifest)) tags.push_back(name);
  }
  return tags;
}

std::optional<std::string> latest_tag(FileSystem& files, const fs::path& directory) {
  std::optional<std::string> text = read_text(files, directory / kLatest);
  if (!text) return std::nullopt;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  if (text->starts_with(kMark)) text->erase(0, kMark.size());
  const size_t begin = std::min(text->find_first_not_of(kBlanks), text->size());
  *text = text->substr(begin, text->find_last_not_of(kBlanks) + 1 - begin);
  try {
    check_tag(*text);
  } catch (const UserError& error) {
    throw UserError((directory / kLatest).string() + " names no checkpoint: " + error.what());
  }
  return text;
}

std::optional<std::string> latest_to_keep(FileSystem& files, const fs::path& directory) {
  auto latest = latest_tag(files, directory);
  if (!latest) return latest;
  const auto manifest = read_text(files, directory / *latest / kManifestName);
  if (manifest && outline_of(*manifest)) return latest;
  throw UserError(
      (directory / kLatest).string() + " names " + *latest +
      ", which is no checkpoint of the folder, so no checkpoint is removed: correct or remove that "
      "file");
}

}  // namespace zerorun
