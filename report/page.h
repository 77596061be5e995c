// The page of `zerorun report`: HTML that asks for nothing from elsewhere. Used by one thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace zerorun {

/// The page about the runs with logs in these one or two folders. Throws UserError if there is no such log,
/// or if this program was built without dygraphs.
std::string report_page(const std::vector<std::filesystem::path>& folders);

}  // namespace zerorun
