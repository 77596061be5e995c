#include "launcher/rank_labels.h"

namespace zerorun::launcher {

std::vector<std::string> rank_labels(const std::vector<Node>& nodes, int node) {
  std::vector<std::string> labels;
  int rank = 0;
  for (int number = 0; number < static_cast<int>(nodes.size()); ++number) {
    for (size_t slot = 0; slot < nodes[number].slots.size(); ++slot, ++rank) {
      if (node >= 0 && number != node) continue;
      labels.push_back((nodes.size() > 1 ? nodes[number].host + " rank " : "rank ") + std::to_string(rank));
    }
  }
  return labels;
}

}  // namespace zerorun::launcher
