// The text that --dry_run prints, and quoting for a POSIX shell. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/node_order.h"
#include "launcher/rank_environment.h"

namespace zerorun::launcher {

/// A line for each rank of the job: its host, then the command with the variables that the launcher sets,
/// quoted for a POSIX shell. Leaves out variables that are chosen when the job starts: ZERORUN_JOB,
/// ZERORUN_LISTEN_FD, and MASTER_ADDR and MASTER_PORT unless they are given. For ranks on hosts other than
/// `node`, also leaves out variables that depend on the host's cores and GPUs.
std::string describe_job(const JobEnvironment& job, int node, const std::vector<std::string>& inherited,
                         const NodeOrder& order);

/// `words` as a line for a POSIX shell, in which `secret` (not empty) is replaced by "...".
std::string shell_line(const std::vector<std::string>& words, const std::string& secret);

/// `text` as one word of a POSIX shell.
std::string shell_word(std::string_view text);

}  // namespace zerorun::launcher
