// Which checkpoints of a folder are old, and their removal. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::checkpoint {

/// A tag that is to be removed.
struct OldTag {
  std::string tag;
  FileIdentity folder;  // a tag that is saved anew has another one
};

/// Returns the tags that ZeroRun has named itself, the one that was saved last first, except: the `keep` that
/// were saved last, the tag that `latest` names, links and what they name, and tags that hold more than a
/// checkpoint (logs a warning for each). Among tags without a saving number the step decides. Neither counts
/// nor returns tags in `left_out`. Throws UserError if `latest` names no checkpoint of the folder.
std::vector<OldTag> old_tags(FileSystem& files, const std::filesystem::path& directory, int64_t keep,
                             const std::set<std::string>& left_out);

/// Removes a published tag atomically: a crash leaves either the whole tag or none of it. Throws UserError,
/// and removes nothing, if the tag is a link, is no checkpoint, holds more than a checkpoint, has been saved
/// anew, or is named by `latest`.
void remove_tag(FileSystem& files, const std::filesystem::path& directory, const OldTag& old);
/// As remove_tag(), but logs a warning if the tag stays. Returns whether it is removed.
bool try_remove_tag(FileSystem& files, const std::filesystem::path& directory, const OldTag& old);

/// As latest_tag(), but throws UserError if `latest` names no checkpoint of the folder.
std::optional<std::string> latest_to_keep(FileSystem& files, const std::filesystem::path& directory);

}  // namespace zerorun::checkpoint
