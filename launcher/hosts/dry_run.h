// The text that --dry_run prints, and quoting for a POSIX shell. Pure, except that find_mesh() reads a file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mesh_sizes.h"
#include "launcher/hosts/node_order.h"
#include "launcher/rank_environment.h"

namespace zerorun::launcher {

/// A line for each rank of the job: its host, then the command with the variables that the launcher sets,
/// quoted for a POSIX shell. Leaves out variables that are chosen when the job starts: ZERORUN_JOB,
/// ZERORUN_LISTEN_FD, and MASTER_ADDR and MASTER_PORT unless they are given. For ranks on hosts other than
/// `node`, also leaves out variables that depend on the host's cores and GPUs. With a mesh each line ends
/// with the rank's coordinates, as a comment.
std::string describe_job(const JobEnvironment& job, int node, const std::vector<std::string>& inherited,
                         const NodeOrder& order, const std::optional<MeshSizes>& mesh = {});

/// The zerorun.mesh of the first ds_config.json that the command names ("x.json" or "--name=x.json"), for
/// `world_size` ranks; nothing if it names none, or none with a mesh that fits.
std::optional<MeshSizes> find_mesh(const std::vector<std::string>& command, int world_size);

/// `words` as a line for a POSIX shell, in which `secret` (not empty) is replaced by "...".
std::string shell_line(const std::vector<std::string>& words, const std::string& secret);

/// `text` as one word of a POSIX shell.
std::string shell_word(std::string_view text);

}  // namespace zerorun::launcher
