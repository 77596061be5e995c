// Starts one rank: a child process that leads its own process group, is killed when the launcher ends, and
// writes into two pipes. Used by the Job on the main thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/core_binding.h"
#include "launcher/guardian.h"
#include "launcher/signals.h"

namespace zerorun {

struct RankProcess {
  pid_t pid = -1;  // also the number of its process group
  UniqueFd out;    // read ends, non-blocking
  UniqueFd err;
};

/// Runs `file` with `arguments`, the first of which is the program's own name. If `inherited` is open, the
/// program inherits the descriptor under the same number. With a `binding` it runs on those cores. Throws
/// UserError if the system cannot run the file, Error if it is out of processes or descriptors.
RankProcess start_rank(int rank, const std::string& file, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment, const UniqueFd& inherited,
                       const Signals& signals, const Guardian& guardian,
                       const CoreBinding* binding = nullptr);

}  // namespace zerorun
