#include "checkpoint/own_folder.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <exception>
#include <string_view>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "checkpoint/manifest.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMarker = "A checkpoint that ZeroRun is saving: ";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kData = ".safetensors";
constexpr const char* kPartialLatest = "latest";  // ".latest.ID.partial", a file
constexpr size_t kIdDigits = 16;
constexpr int64_t kMostMarkerBytes = 4096;

// The end of the marker of a save of this host.
std::string on_this_host() {
  return "\non host " + host_name() + "\n";
}

bool is_a_day_old(const FileIdentity& file) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return now - std::chrono::nanoseconds(file.changed) > std::chrono::hours(24);
}

// Removes a leftover named ".TAG.ID.partial" if certainly no job needs it any more.
void sweep_one(FileSystem& files, const fs::path& path, const std::string& tag) {
  const auto found = files.identity(path);
  if (!found) return;
  const bool is_old = is_a_day_old(*found);
  if (tag == kPartialLatest) {
    if (is_old) files.remove_file(path);
    return;
  }
  const auto own = own_folder(files, path);
  const bool is_dead = is_old || (own && (own->marker.empty() || own->marker.ends_with(on_this_host())));
  if (!is_dead) return;
  if (!own) return remove_own_folder(files, path);
  if (!own->others.empty()) throw UserError(more_than_a_checkpoint(path, *own) + ": all of it stays");
  // Renamed first: if its job lives after all, then that job's renaming fails, and it publishes no tag from
  // which files are removed.
  const fs::path gone = partial_folder(path.parent_path(), tag, new_save_id());
  const int renamed = files.rename(path, gone);
  if (renamed == -ENOENT) return;
  check_done(renamed, path, "renamed to " + gone.string());
  remove_own_folder(files, gone);
}

}  // namespace

std::string new_save_id() {
  return in_hexadecimal(random_bits());
}

std::string marker_text(const std::string& id) {
  return std::string(kMarker) + id + on_this_host();
}

bool is_marked(FileSystem& files, const fs::path& folder, const std::string& id) {
  const auto text = read_text(files, folder / kMarkerName, kMostMarkerBytes);
  return text && text->starts_with(std::string(kMarker) + id + "\n");
}

bool is_checkpoint(FileSystem& files, const fs::path& folder) {
  const auto manifest = read_text(files, folder / kManifestName);
  return manifest && outline_of(*manifest);
}

std::string OpenFolder::text(const std::string& name, int64_t most_bytes) const {
  const int file = files_->open_at(folder_, name);
  if (file < 0) return "";
  try {
    return OpenFile(*files_, name, file).text(most_bytes);
  } catch (const UserError&) {
    return "";
  }
}

std::string more_than_a_checkpoint(const fs::path& folder, const OwnFolder& own) {
  return folder.string() + " holds " + own.others.front() + ", which is no part of the checkpoint";
}

fs::path partial_folder(const fs::path& directory, const std::string& tag, const std::string& id) {
  return directory / ("." + tag + "." + id + std::string(kPartial));
}

std::optional<std::string> tag_of_partial(const std::string& name) {
  if (name.size() <= kPartial.size() + 1 || name.front() != '.' || !name.ends_with(kPartial))
    return std::nullopt;
  std::string tag = name.substr(1, name.size() - 1 - kPartial.size());
  const size_t dot = tag.rfind('.');
  const bool has_id = dot != std::string::npos && dot > 0 && tag.size() - dot - 1 == kIdDigits &&
                      std::all_of(tag.begin() + static_cast<std::ptrdiff_t>(dot) + 1, tag.end(),
                                  [](unsigned char c) { return std::isxdigit(c) != 0; });
  return has_id ? tag.substr(0, dot) : tag;
}

std::optional<OwnFolder> own_folder(FileSystem& files, const fs::path& folder) {
  OwnFolder own{.folder = OpenFolder(files, folder)};
  if (own.folder.number() < 0) return std::nullopt;
  const auto names = files.list_open(own.folder.number());
  if (!names) return std::nullopt;
  const auto outline = outline_of(own.folder.text(kManifestName));
  if (std::string marker = own.folder.text(kMarkerName, kMostMarkerBytes); marker.starts_with(kMarker))
    own.marker = std::move(marker);
  if (!outline && own.marker.empty()) return std::nullopt;
  if (outline) {
    own.has_manifest = true;
    own.saving = outline->saving;
    own.names = outline->files;
  }
  own.names.insert({kManifestName, kMarkerName});
  for (const std::string& name : *names) {
    // Before its manifest is complete, the data files of a marked folder are known by their kind only.
    if (!outline && name.ends_with(kData)) own.names.insert(name);
    if (!own.names.contains(name)) own.others.push_back(name);
  }
  return own;
}

void check_replaceable(FileSystem& files, const fs::path& folder) {
  if (const auto target = files.link_target(folder)) {
    throw UserError(folder.string() + " is a symbolic link to " + target->string() +
                    ", and a checkpoint replaces no link: choose another tag, or remove the link");
  }
  if (!files.identity(folder)) return;
  const auto names = files.list(folder);
  if (names && names->empty()) return;
  const auto own = own_folder(files, folder);
  if (!own || !own->has_manifest) {
    throw UserError(folder.string() +
                    " exists and is not a checkpoint, so no checkpoint replaces it: choose another tag");
  }
  if (own->others.empty()) return;
  throw UserError(more_than_a_checkpoint(folder, *own) +
                  ", so no checkpoint replaces it: move that elsewhere, or choose another tag");
}

// Removes the manifest or the marker last: if a crash comes in between, the next sweep still knows the
// folder.
void remove_own_folder(FileSystem& files, const fs::path& folder) {
  if (!files.identity(folder)) return;
  files.remove_file(folder / kUnfinishedMarker);  // of a job that ended while it made the folder
  if (files.remove_folder(folder) == 0) return;   // an empty one
  const auto own = own_folder(files, folder);
  if (!own) throw UserError(folder.string() + " is not a folder of ZeroRun: it stays");
  if (!own->others.empty()) throw UserError(more_than_a_checkpoint(folder, *own) + ": all of it stays");
  const auto remove = [&](const std::string& name) {
    const int removed = files.remove_at(own->folder.number(), name);
    if (removed != -ENOENT) check_done(removed, folder / name, "removed");
  };
  for (const std::string& name : own->names) {
    if (name != kManifestName && name != kMarkerName) remove(name);
  }
  remove(kManifestName);
  remove(kMarkerName);
  const int removed = files.remove_folder(folder);
  if (removed != -ENOENT) check_done(removed, folder, "removed");
}

void sweep(FileSystem& files, const fs::path& directory, const std::function<void()>& waiting) {
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    if (waiting) waiting();
    const auto tag = tag_of_partial(name);
    const bool has_id = tag && name.size() == tag->size() + kIdDigits + kPartial.size() + 2;
    if (!has_id || files.link_target(directory / name)) continue;
    try {
      sweep_one(files, directory / name, *tag);
    } catch (const std::exception& error) {
      log_warning(std::string("a leftover of an earlier job stays: ") + error.what());
    }
  }
}

}  // namespace zerorun::checkpoint
