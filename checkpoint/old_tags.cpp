#include "checkpoint/old_tags.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/own_folder.h"
#include "checkpoint/publication.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

// The names in `directory` that must not be removed because of symbolic links there: the links, and what they
// lead to or into.
std::set<std::string> linked_names(FileSystem& files, const fs::path& directory) {
  std::set<std::string> names;
  const fs::path whole = fs::weakly_canonical(directory);
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    const auto target = files.link_target(directory / name);
    if (!target) continue;
    names.insert(name);
    const fs::path inside = target->lexically_relative(whole);
    if (!inside.empty()) names.insert(inside.begin()->string());
  }
  return names;
}

}  // namespace

std::optional<std::string> latest_to_keep(FileSystem& files, const fs::path& directory) {
  auto latest = latest_tag(files, directory);
  if (!latest || is_checkpoint(files, directory / *latest)) return latest;
  throw UserError(
      (directory / "latest").string() + " names " + *latest +
      ", which is no checkpoint of the folder, so no checkpoint is removed: correct or remove that "
      "file");
}

std::vector<OldTag> old_tags(FileSystem& files, const fs::path& directory, int64_t keep,
                             const std::set<std::string>& left_out) {
  struct Found {
    OldTag tag;
    int64_t saving, step;
    std::string problem;  // why the tag must stay
  };
  const auto latest = latest_to_keep(files, directory);
  std::vector<Found> found;
  for (const std::string& name : files.list(directory).value_or(std::vector<std::string>())) {
    const auto step = step_of_tag(name);
    if (!step || left_out.contains(name)) continue;
    const auto identity = files.identity(directory / name);
    const auto own = own_folder(files, directory / name);  // absent for a link
    if (!identity || !own || !own->has_manifest) continue;
    found.push_back({.tag = {.tag = name, .folder = *identity},
                     .saving = own->saving,
                     .step = *step,
                     .problem = own->others.empty() ? "" : more_than_a_checkpoint(directory / name, *own)});
  }
  std::ranges::sort(found, std::greater<>(),
                    [](const Found& one) { return std::pair(one.saving, one.step); });
  const std::set<std::string> linked = linked_names(files, directory);
  std::vector<OldTag> old;
  for (size_t index = static_cast<size_t>(keep); index < found.size(); ++index) {
    Found& one = found[index];
    if (one.tag.tag == latest || linked.contains(one.tag.tag)) continue;
    if (one.problem.empty()) {
      old.push_back(std::move(one.tag));
    } else {
      log_warning(one.problem + ": it is not removed");
    }
  }
  return old;
}

// Renames the tag's folder before it removes the files. Otherwise readers could take a folder with some of
// the files for a complete tag.
void remove_tag(FileSystem& files, const fs::path& directory, const OldTag& old) {
  const fs::path folder = directory / old.tag;
  const std::string anew = folder.string() + " has been saved anew meanwhile: it stays";
  check_replaceable(files, folder);
  if (latest_to_keep(files, directory) == old.tag)
    throw UserError(folder.string() + " is named by latest meanwhile: it stays");
  if (files.identity(folder) != old.folder) throw UserError(anew);
  const fs::path gone = partial_folder(directory, old.tag, new_save_id());
  check_done(files.rename(folder, gone), folder, "removed");
  if (files.identity(gone) != old.folder) {
    check_done(files.rename(gone, folder), gone, "renamed to " + folder.string());
    throw UserError(anew);
  }
  check_done(files.sync_folder(directory), directory, "synced");
  remove_own_folder(files, gone);
}

bool try_remove_tag(FileSystem& files, const fs::path& directory, const OldTag& old) {
  try {
    remove_tag(files, directory, old);
    return true;
  } catch (const UserError& error) {
    log_warning(std::string("an old checkpoint is not removed: ") + error.what());
    return false;
  }
}

}  // namespace zerorun::checkpoint
