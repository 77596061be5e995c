// Writes a file that others see either whole or not at all. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace zerorun {

/// Writes `content` to a file beside `path` and renames it to `path`. Throws UserError, which says what has
/// given the path.
void write_whole_file(const std::filesystem::path& path, std::string_view content,
                      const std::string& given_by = "zerorun.timeline.path, --timeline");

}  // namespace zerorun
