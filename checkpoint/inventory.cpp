#include "checkpoint/inventory.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/old_tags.h"
#include "checkpoint/publication.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto size = entry.file_size(error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

fs::file_time_type time_of(const fs::path& folder) {
  std::error_code error;
  const auto written = fs::last_write_time(folder / kManifestName, error);
  return error ? fs::last_write_time(folder, error) : written;
}

// Throws UserError if a file of the manifest is missing or has another length.
void check_files(const fs::path& folder, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    std::error_code error;
    const auto bytes = fs::file_size(folder / name, error);
    if (error) throw UserError((folder / name).string() + ": missing");
    if (static_cast<int64_t>(bytes) != file.bytes)
      throw UserError((folder / name).string() + ": " + std::to_string(bytes) + " bytes, expected " +
                      std::to_string(file.bytes));
  }
}

InventoryTag describe(FileSystem& files, const fs::path& folder, const std::string& name) {
  InventoryTag tag{.tag = name, .folder = folder, .bytes = bytes_in(folder), .written = time_of(folder)};
  tag.identity = files.identity(folder).value_or(FileIdentity());
  if (const auto unfinished = tag_of_partial(name)) {
    tag.tag = *unfinished;
    tag.state = TagState::unfinished;
    return tag;
  }
  try {
    const fs::path manifest = folder / kManifestName;
    tag.manifest = parse_manifest(read_text(files, manifest).value_or(""), manifest.string());
    check_files(folder, *tag.manifest);
  } catch (const UserError& error) {
    tag.state = TagState::damaged;
    tag.problem = error.what();
  }
  return tag;
}

std::optional<std::string> readable_latest(FileSystem& files, const fs::path& directory) {
  try {
    return latest_tag(files, directory);
  } catch (const UserError&) {
    return std::nullopt;  // the text in `latest` is not a valid tag
  }
}

// Returns how many bytes the disk gains if these tags are removed. A file with a hard link outside `removed`
// is not counted.
int64_t freed_bytes(const std::vector<InventoryTag>& removed) {
  struct Links {
    nlink_t found = 0;
    nlink_t all = 0;
    int64_t bytes = 0;
  };
  std::map<std::pair<dev_t, ino_t>, Links> files;
  for (const InventoryTag& tag : removed) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(tag.folder, error)) {
      struct stat status = {};
      if (::lstat(entry.path().c_str(), &status) != 0) continue;
      Links& links = files[{status.st_dev, status.st_ino}];
      links = {links.found + 1, status.st_nlink, static_cast<int64_t>(status.st_size)};
    }
  }
  int64_t bytes = 0;
  for (const auto& [identity, links] : files) bytes += links.found == links.all ? links.bytes : 0;
  return bytes;
}

}  // namespace

std::vector<InventoryTag> list_tags(FileSystem& files, const fs::path& directory) {
  const auto names = files.list(directory);
  if (!names) throw UserError(directory.string() + ": cannot be read: expected a folder of checkpoints");
  if (is_checkpoint(files, directory)) {
    throw UserError(directory.string() + " is a checkpoint itself: give the folder above it");
  }
  const auto latest = readable_latest(files, directory);
  std::vector<InventoryTag> tags;
  for (const std::string& name : *names) {
    const auto entries = files.list(directory / name);
    if (!entries) continue;
    const bool has_manifest = std::ranges::find(*entries, kManifestName) != entries->end();
    const bool is_partial = tag_of_partial(name).has_value();
    if (!is_partial && (!has_manifest || name.front() == '.')) continue;
    tags.push_back(describe(files, directory / name, name));
    tags.back().is_latest = !is_partial && latest == name;
  }
  std::ranges::stable_sort(tags, {}, [](const InventoryTag& tag) {
    return std::tuple(tag.state, tag.manifest ? -tag.manifest->saving : 0,
                      tag.manifest ? -tag.manifest->generation : 0, -step_of_tag(tag.tag).value_or(0));
  });
  return tags;
}

PrunePlan plan_prune(FileSystem& files, const fs::path& directory, const PruneOptions& options) {
  std::vector<InventoryTag> tags = list_tags(files, directory);
  std::set<std::string> damaged, being_written, old;
  for (const InventoryTag& tag : tags) {
    if (tag.state == TagState::damaged) damaged.insert(tag.tag);
    if (tag.state == TagState::unfinished) being_written.insert(tag.tag);
  }
  for (const OldTag& tag : old_tags(files, directory, options.keep, damaged)) old.insert(tag.tag);
  PrunePlan plan;
  for (InventoryTag& tag : tags) {
    if (tag.state != TagState::complete || fs::is_symlink(tag.folder)) continue;
    const bool goes = old.contains(tag.tag) && !being_written.contains(tag.tag) &&
                      (options.keep_every <= 0 || *step_of_tag(tag.tag) % options.keep_every != 0);
    (goes ? plan.removed : plan.kept).push_back(std::move(tag));
  }
  plan.freed_bytes = freed_bytes(plan.removed);
  return plan;
}

bool prune(FileSystem& files, const fs::path& directory, PrunePlan& plan) {
  std::vector<InventoryTag> removed, stayed;
  for (InventoryTag& tag : plan.removed) {
    const bool is_gone = try_remove_tag(files, directory, {.tag = tag.tag, .folder = tag.identity});
    (is_gone ? removed : stayed).push_back(std::move(tag));
  }
  // Now the only names of a file that the plan counted are in `stayed`.
  plan.freed_bytes = std::max<int64_t>(0, plan.freed_bytes - freed_bytes(stayed));
  plan.removed = std::move(removed);
  plan.kept.insert(plan.kept.end(), stayed.begin(), stayed.end());
  return stayed.empty();
}

fs::path checkpoint_folder(FileSystem& files, const fs::path& path, const std::string& tag) {
  const auto names = files.list(path);
  if (!names) throw UserError(path.string() + ": cannot be read: expected the folder of a checkpoint");
  std::string problem = ": not a checkpoint: it has neither manifest.json nor latest";
  if (tag.empty() && std::ranges::find(*names, kManifestName) != names->end()) return path;
  if (!tag.empty()) {
    check_tag(tag);
    if (files.list(path / tag)) return path / tag;
  } else if (const auto latest = latest_tag(files, path)) {
    if (files.list(path / *latest)) return path / *latest;
    problem = ": latest names " + *latest + ", which is not there";
  }
  std::string found;
  for (const std::string& published : published_tags(files, path)) found += " " + published;
  throw UserError(path.string() + (tag.empty() ? problem : ": no tag " + tag) +
                  (found.empty() ? "" : "; its tags are" + found));
}

}  // namespace zerorun::checkpoint
