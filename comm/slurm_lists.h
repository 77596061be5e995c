// Slurm's short forms of lists in environment variables. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun {

/// The hosts of a list such as "gpu[01-03,7],login2", in its order; nothing if the text is no such list.
std::optional<std::vector<std::string>> expand_host_list(const std::string& text);

/// The numbers of a list such as "2(x3),1": 2 2 2 1; nothing if the text is no such list.
std::optional<std::vector<int>> expand_task_counts(const std::string& text);

}  // namespace zerorun
