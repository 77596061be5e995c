// The names of ranks in front of their lines, and in reports. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/placement.h"

namespace zerorun {

/// "rank 3", in a job of several hosts "worker-1 rank 3": of all ranks, or of those of `node` only.
std::vector<std::string> rank_labels(const std::vector<Node>& nodes, int node = -1);

}  // namespace zerorun
