// Lists the files that gpt2 trains on if the user gives no --data. Safe from any thread.
#pragma once

#include <filesystem>
#include <vector>

namespace zerorun {

/// ZeroRun's own documents and C++ sources below `source_dir`, sorted by path. Throws UserError if there are
/// none.
std::vector<std::filesystem::path> own_sources(const std::filesystem::path& source_dir);

}  // namespace zerorun
