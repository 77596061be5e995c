// The names of ranks, which the launcher prints in front of the lines of their output. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/placement.h"

namespace zerorun::launcher {

/// The names of all ranks, or of the ranks of `node` only: "rank 3", or "worker-1 rank 3" in a job on several
/// hosts.
std::vector<std::string> rank_labels(const std::vector<Node>& nodes, int node = -1);

}  // namespace zerorun::launcher
