#include "pipeline/schedule.h"

#include <algorithm>

namespace zerorun {

std::vector<PipelineAction> one_forward_one_backward(int stage, int stages, int micro_batches) {
  const int ahead = std::min(stages - stage - 1, micro_batches);  // forwards before the first pair
  std::vector<PipelineAction> actions;
  for (int forward = 0; forward < ahead; ++forward) actions.push_back({true, forward});
  for (int forward = ahead; forward < micro_batches; ++forward) {
    actions.push_back({true, forward});
    actions.push_back({false, forward - ahead});
  }
  for (int backward = micro_batches - ahead; backward < micro_batches; ++backward)
    actions.push_back({false, backward});
  return actions;
}

}  // namespace zerorun
