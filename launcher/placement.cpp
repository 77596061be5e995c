#include "launcher/placement.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace zerorun::launcher {

Placement::Placement(std::vector<Node> nodes) : nodes_(std::move(nodes)), first_ranks_{0} {
  ZR_CHECK(!nodes_.empty(), "a job needs a host");
  for (const Node& node : nodes_) {
    ZR_CHECK(!node.slots.empty(), "host " + node.host + " has no rank");
    first_ranks_.push_back(first_ranks_.back() + static_cast<int>(node.slots.size()));
  }
}

int Placement::node_of(int rank) const {
  ZR_CHECK(rank >= 0 && rank < world_size(),
           "rank " + std::to_string(rank) + " of " + std::to_string(world_size()) + " does not exist");
  return static_cast<int>(std::ranges::upper_bound(first_ranks_, rank) - first_ranks_.begin()) - 1;
}

}  // namespace zerorun::launcher
