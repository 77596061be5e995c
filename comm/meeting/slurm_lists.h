// Slurm's short forms of lists in environment variables. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun {

/// Returns the hosts of a list such as "gpu[01-03,7],login2", in their order in the list. Returns nothing if
/// `text` is not a host list.
std::optional<std::vector<std::string>> expand_host_list(const std::string& text);

/// Returns the numbers of a list: 2, 2, 2 and 1 for "2(x3),1". Returns nothing if `text` is not such a list.
std::optional<std::vector<int>> expand_task_counts(const std::string& text);

}  // namespace zerorun
