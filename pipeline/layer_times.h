// How long each layer of a pipeline takes, for PipelineCut::seconds.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "pipeline/layers.h"

namespace zerorun {

/// Runs each layer forward and backward with what `batch` becomes in the layers before it, `repeats` times on
/// rank 0. Returns the median seconds of each layer, the same on all ranks. Changes no gradients. The layers
/// need memory on rank 0: measure before initialize(), if need be a model with fewer parameters, since only
/// ratios count. A collective. Throws on all ranks what a layer throws.
std::vector<double> measure_layers(const std::vector<PipelineLayer>& layers, const MicroBatch& batch,
                                   Communicator& communicator, int repeats = 5);

}  // namespace zerorun
