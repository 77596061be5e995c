#include "checkpoint/own_folder.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <exception>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/manifest.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMarker = "A checkpoint that ZeroRun is saving: ";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kData = ".safetensors";
constexpr const char* kPartialLatest = ".latest";  // ".latest.ID.partial", a file
constexpr size_t kIdDigits = 16;

// An open folder. Throws UserError if it is a link.
class OpenFolder {
 public:
  OpenFolder(FileSystem& files, const fs::path& path) : files_(&files), folder_(files.open_folder(path)) {}
  ~OpenFolder() {
    if (folder_ >= 0) files_->close(folder_);
  }
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  int number() const { return folder_; }  // or -errno

 private:
  FileSystem* files_;
  int folder_;
};

// Absent if the file does not exist or cannot be read.
std::optional<std::string> readable_text(FileSystem& files, const fs::path& path) {
  try {
    return read_text(files, path);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::string more_than_a_checkpoint(const fs::path& folder, const OwnFolder& own) {
  return folder.string() + " holds " + own.others.front() + ", which is no part of the checkpoint";
}

}  // namespace

std::string marker_text(const std::string& id) {
  return std::string(kMarker) + id + "\n";
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
  const OpenFolder opened(files, folder);
  if (opened.number() < 0) return std::nullopt;
  const auto names = files.list_open(opened.number());
  if (!names) return std::nullopt;
  OwnFolder own;
  const std::string manifest = readable_text(files, folder / kManifestName).value_or("");
  const auto outline = outline_of(manifest);
  const bool is_marked = readable_text(files, folder / kMarkerName).value_or("").starts_with(kMarker);
  if (!outline && !is_marked) return std::nullopt;
  if (outline) {
    own.has_manifest = true;
    own.saving = outline->saving;
    own.names = outline->files;
  }
  own.names.insert({kManifestName, kMarkerName});
  for (const std::string& name : *names) {
    // Before its manifest is complete, the data files of a marked folder are known by their kind only.
    if (is_marked && name.ends_with(kData)) own.names.insert(name);
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
  if (files.remove_folder(folder) == 0) return;  // an empty one
  const auto own = own_folder(files, folder);
  if (!own) throw UserError(folder.string() + " is not a folder of ZeroRun: it stays");
  if (!own->others.empty()) throw UserError(more_than_a_checkpoint(folder, *own) + ": all of it stays");
  const OpenFolder opened(files, folder);
  check_done(opened.number(), folder, "opened");
  const auto remove = [&](const std::string& name) {
    const int removed = files.remove_at(opened.number(), name);
    if (removed != -ENOENT) check_done(removed, folder / name, "removed");
  };
  for (const std::string& name : own->names) {
    if (name != kManifestName && name != kMarkerName) remove(name);
  }
  remove(kManifestName);
  remove(kMarkerName);
  check_done(files.remove_folder(folder), folder, "removed");
}

void sweep(FileSystem& files, const fs::path& directory) {
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    const auto tag = tag_of_partial(name);
    if (!tag || files.link_target(directory / name)) continue;
    try {
      if (("." + *tag) == kPartialLatest) {
        files.remove_file(directory / name);
      } else if (files.list(directory / name)) {
        remove_own_folder(files, directory / name);
      }
    } catch (const std::exception& error) {
      log_warning(std::string("a leftover of an earlier job stays: ") + error.what());
    }
  }
}

std::set<std::string> linked_names(FileSystem& files, const fs::path& directory) {
  std::set<std::string> names;
  const fs::path whole = fs::weakly_canonical(directory);
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    const auto target = files.link_target(directory / name);
    if (!target) continue;
    names.insert(name);
    if (target->parent_path() == whole) names.insert(target->filename().string());
  }
  return names;
}

}  // namespace zerorun
