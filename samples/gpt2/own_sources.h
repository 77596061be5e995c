// The files that are trained on if a user names none. Pure function; any thread.
#pragma once

#include <filesystem>
#include <vector>

namespace zerorun {

/// ZeroRun's own documents and C++ sources below `source_dir`, sorted by path. Throws UserError if there are
/// none.
std::vector<std::filesystem::path> own_sources(const std::filesystem::path& source_dir);

}  // namespace zerorun
