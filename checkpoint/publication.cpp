#include "checkpoint/publication.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <exception>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kPartialLatest = ".latest.partial";
constexpr size_t kLongestTag = 200;

// Removes a trailing slash, because parent_path() of "a/b/" is "a/b".
fs::path without_slash(fs::path folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

// Throws UserError if `folder` exists and is neither empty nor a checkpoint: only checkpoints are replaced.
void check_replaceable(FileSystem& files, const fs::path& folder) {
  const auto names = files.list(folder);
  if (!names || names->empty() || std::ranges::find(*names, kManifestName) != names->end()) return;
  throw UserError(folder.string() +
                  " exists and is not a checkpoint, so no checkpoint replaces it: choose another tag");
}

}  // namespace

void check_tag(const std::string& tag) {
  const bool named = !tag.empty() && tag.size() <= kLongestTag && tag.front() != '.' && tag != kLatest &&
                     tag.find('/') == std::string::npos && tag.find('\n') == std::string::npos;
  if (named) return;
  throw UserError("checkpoint tag \"" + tag +
                  "\": expected the name of a folder, without '/' and new lines, at most " +
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

fs::path partial_folder(const fs::path& directory, const std::string& tag) {
  return directory / ("." + tag + ".partial");
}

Publication::Publication(FileSystem& files, fs::path directory, std::string tag)
    : files_(&files), directory_(without_slash(std::move(directory))), tag_(std::move(tag)) {
  check_tag(tag_);
  partial_ = partial_folder(directory_, tag_);
  make_folders(files, directory_);
  check_replaceable(files, directory_ / tag_);
  remove_flat_folder(files, partial_);
  check_done(files.make_folder(partial_), partial_, "made");
}

Publication::~Publication() {
  if (published_) return;
  try {
    remove_flat_folder(*files_, partial_);
  } catch (const std::exception& error) {
    log_warning(std::string("the remains of a failed checkpoint cannot be removed: ") + error.what());
  }
}

void Publication::mark(const std::string& save_id) {
  write_text(*files_, partial_ / kSaveIdName, save_id);
  marked_ = true;
}

void Publication::publish(const std::string& manifest, bool save_latest) {
  write_text(*files_, partial_ / kManifestName, manifest);
  if (marked_) check_done(files_->remove_file(partial_ / kSaveIdName), partial_ / kSaveIdName, "removed");
  check_done(files_->sync_folder(partial_), partial_, "synced");
  const fs::path folder = directory_ / tag_;
  if (files_->list(folder)) {
    check_done(files_->exchange(partial_, folder), folder, "replaced (is this file system a local one?)");
    replaced_ = true;
  } else {
    check_done(files_->rename(partial_, folder), partial_, "renamed to " + folder.string());
  }
  published_ = true;
  check_done(files_->sync_folder(directory_), directory_, "synced");
  if (save_latest) name_latest();
}

void Publication::remove_old(int64_t keep_last) noexcept {
  try {
    if (replaced_) remove_flat_folder(*files_, partial_);
    if (keep_last > 0) remove_tags(keep_last);
  } catch (const std::exception& error) {
    log_warning(std::string("an old checkpoint cannot be removed: ") + error.what());
  }
}

// Renames the tag's folder before it removes the files. Otherwise readers could take a folder with some of
// the files for a complete tag.
void remove_tag(FileSystem& files, const fs::path& directory, const std::string& tag) {
  const fs::path gone = partial_folder(directory, tag);
  remove_flat_folder(files, gone);
  check_done(files.rename(directory / tag, gone), directory / tag, "removed");
  check_done(files.sync_folder(directory), directory, "synced");
  remove_flat_folder(files, gone);
}

void Publication::remove_tags(int64_t keep_last) {
  std::map<int64_t, std::string> by_step;
  for (const std::string& tag : published_tags(*files_, directory_)) {
    if (const auto step = step_of_tag(tag)) by_step[*step] = tag;
  }
  const auto latest = latest_tag(*files_, directory_);
  auto left = static_cast<int64_t>(by_step.size());
  for (const auto& [step, tag] : by_step) {
    if (left-- <= keep_last) return;
    if (tag == tag_ || tag == latest) continue;
    remove_tag(*files_, directory_, tag);
  }
}

void Publication::name_latest() {
  const fs::path partial = directory_ / kPartialLatest;
  const int removed = files_->remove_file(partial);
  if (removed != -ENOENT) check_done(removed, partial, "removed");
  write_text(*files_, partial, tag_ + "\n");
  const fs::path latest = directory_ / kLatest;
  check_done(files_->rename(partial, latest), partial, "renamed to " + latest.string());
  check_done(files_->sync_folder(directory_), directory_, "synced");
}

std::vector<std::string> published_tags(FileSystem& files, const fs::path& directory) {
  std::vector<std::string> tags;
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    if (name.front() != '.' && name != kLatest && read_text(files, directory / name / kManifestName)) {
      tags.push_back(name);
    }
  }
  return tags;
}

std::optional<std::string> latest_tag(FileSystem& files, const fs::path& directory) {
  std::optional<std::string> text = read_text(files, directory / kLatest);
  if (!text) return std::nullopt;
  while (text->ends_with('\n')) text->pop_back();
  check_tag(*text);
  return text;
}

}  // namespace zerorun
