#include "checkpoint/inventory.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/publication.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPartialSuffix = ".partial";

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

// Whether a folder named `name` is for a tag that is still being written, such as ".global_step5.partial".
bool is_partial(const std::string& name) {
  return name.size() > kPartialSuffix.size() + 1 && name.front() == '.' && name.ends_with(kPartialSuffix);
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
  if (is_partial(name)) {
    tag.tag = name.substr(1, name.size() - 1 - kPartialSuffix.size());
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
  const auto latest = readable_latest(files, directory);
  std::vector<InventoryTag> tags;
  for (const std::string& name : *names) {
    const auto entries = files.list(directory / name);
    if (!entries) continue;
    const bool has_manifest = std::ranges::find(*entries, kManifestName) != entries->end();
    if (!is_partial(name) && (!has_manifest || name.front() == '.')) continue;
    tags.push_back(describe(files, directory / name, name));
    tags.back().is_latest = !is_partial(name) && latest == name;
  }
  std::ranges::stable_sort(tags, {}, [](const InventoryTag& tag) {
    return std::tuple(tag.state, tag.manifest ? -tag.manifest->generation : 0,
                      -step_of_tag(tag.tag).value_or(0));
  });
  return tags;
}

PrunePlan plan_prune(FileSystem& files, const fs::path& directory, const PruneOptions& options) {
  PrunePlan plan;
  int64_t newest = 0;
  std::vector<InventoryTag> tags = list_tags(files, directory);
  std::set<std::string> being_written;
  std::set<fs::path> linked;  // targets of the symbolic links in `directory`
  for (const InventoryTag& tag : tags) {
    if (tag.state == TagState::unfinished) being_written.insert(tag.tag);
    if (fs::is_symlink(tag.folder)) linked.insert(fs::weakly_canonical(tag.folder));
  }
  for (InventoryTag& tag : tags) {
    if (tag.state != TagState::complete || fs::is_symlink(tag.folder)) continue;
    const auto step = step_of_tag(tag.tag);
    const bool is_kept = !step || tag.is_latest || newest < options.keep || being_written.contains(tag.tag) ||
                         linked.contains(fs::weakly_canonical(tag.folder)) ||
                         (options.keep_every > 0 && *step % options.keep_every == 0);
    newest += step ? 1 : 0;
    (is_kept ? plan.kept : plan.removed).push_back(std::move(tag));
  }
  plan.freed_bytes = freed_bytes(plan.removed);
  return plan;
}

fs::path checkpoint_folder(FileSystem& files, const fs::path& path, const std::string& tag) {
  const auto names = files.list(path);
  if (!names) throw UserError(path.string() + ": cannot be read: expected the folder of a checkpoint");
  if (tag.empty() && std::ranges::find(*names, kManifestName) != names->end()) return path;
  if (!tag.empty()) {
    check_tag(tag);
    if (files.list(path / tag)) return path / tag;
  } else if (const auto latest = latest_tag(files, path)) {
    return path / *latest;
  }
  std::string found;
  for (const std::string& published : published_tags(files, path)) found += " " + published;
  throw UserError(
      path.string() +
      (tag.empty() ? ": not a checkpoint: it has neither manifest.json nor latest" : ": no tag " + tag) +
      (found.empty() ? "" : "; its tags are" + found));
}

}  // namespace zerorun
