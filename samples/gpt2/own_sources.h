// Lists the files that gpt2 trains on if the user gives no --data. Safe from any thread.
#pragma once

#include <filesystem>
#include <vector>

namespace samples {

/// The nearest folder at or above `folder` that contains ZeroRun's sources; `folder` if there is none.
std::filesystem::path checkout_above(const std::filesystem::path& folder);

/// ZeroRun's own documents and C++ sources below `source_dir`, sorted by path. Throws UserError if there are
/// none.
std::vector<std::filesystem::path> own_sources(const std::filesystem::path& source_dir);

}  // namespace samples
