// The order in which a pipeline stage runs the forwards and backwards of a window: one forward, one backward
// (1F1B; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
// section 2.2, there "PipeDream-Flush"). Pure arithmetic.
//
//   stage 0   F0 F1 F2 F3 B0 F4 B1 F5 B2 .. B3 .. B4 .. B5
//   stage 1      F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 .. B4 .. B5
//   stage 2         F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 .. B5
//   stage 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
//
// A stage holds the activations of at most `stages - stage` micro-batches. With m micro-batches and p stages
// of equal time, each waits for (p - 1) / (m + p - 1) of the window.
#pragma once

#include <vector>

namespace zerorun {

struct PipelineAction {
  bool is_forward;
  int micro_batch;

  bool operator==(const PipelineAction&) const = default;
};

std::vector<PipelineAction> one_forward_one_backward(int stage, int stages, int micro_batches);

}  // namespace zerorun
