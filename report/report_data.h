// What the page of `zerorun report` shows of one or two runs, as JSON that its script reads
// (page/report.js). Used by one thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace zerorun {

/// The data of the logs in these one or two folders. No text of a log can end the element of the page that
/// the JSON is in. Throws UserError if a folder has no log, or a damaged one.
std::string report_data(const std::vector<std::filesystem::path>& folders);

}  // namespace zerorun
