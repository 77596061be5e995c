// Gives all ranks the same values of tensors that are in no bucket.
#pragma once

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/mesh.h"
#include "engine/model_parameters.h"

namespace zerorun {

/// Copies `root`'s values to all ranks.
void broadcast_tensor(const NamedTensor& tensor, int root, Communicator& communicator);
/// Moves model.unbucketed and model.unsaved to the rank's device, converts them, and copies the values of the
/// first rank of the data group, with a tensor plan those of the first tensor rank, of tied ones those of
/// the first stage, to all ranks. Returns why
/// this rank could not compute deferred values, as Buckets::unfilled().
Failure broadcast_others(const ModelParameters& model, const Mesh& mesh);

}  // namespace zerorun
