#include "pipeline/cut.h"

#include <algorithm>
#include <limits>

namespace zerorun {

const char* name_of(PipelineCut::By by) {
  switch (by) {
    case PipelineCut::By::bytes:
      return "bytes";
    case PipelineCut::By::number:
      return "number";
    case PipelineCut::By::seconds:
      return "seconds";
    case PipelineCut::By::names:
      break;
  }
  return "names";
}

std::vector<int> cut_by_cost(std::span<const double> costs, int stages) {
  const auto layers = static_cast<int>(costs.size());
  std::vector<double> before(costs.size() + 1);  // the sum of the costs of all layers before this one
  for (int layer = 0; layer < layers; ++layer) before[layer + 1] = before[layer] + costs[layer];

  // best[s][n]: the largest sum of the best division of the first n layers into s stages; last[s][n]: the
  // first layer of the last of these stages.
  const double infinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, infinite));
  std::vector<std::vector<int>> last(stages + 1, std::vector<int>(layers + 1, 0));
  best[0][0] = 0;
  for (int stage = 1; stage <= stages; ++stage) {
    for (int count = stage; count <= layers; ++count) {
      for (int first = stage - 1; first < count; ++first) {
        const double largest = std::max(best[stage - 1][first], before[count] - before[first]);
        if (largest >= best[stage][count]) continue;
        best[stage][count] = largest;
        last[stage][count] = first;
      }
    }
  }
  std::vector<int> begins(stages + 1, layers);
  for (int stage = stages; stage > 0; --stage) begins[stage - 1] = last[stage][begins[stage]];
  return begins;
}

std::vector<int> cut_by_number(int layers, int stages) {
  std::vector<int> begins;
  for (int stage = 0; stage <= stages; ++stage)
    begins.push_back(stage * (layers / stages) + std::min(stage, layers % stages));
  return begins;
}

}  // namespace zerorun
