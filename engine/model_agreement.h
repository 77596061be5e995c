// Whether all ranks have the same settings, and the ranks that share a model the same model.
#pragma once

#include <string>

#include "comm/mesh.h"
#include "engine/model_parameters.h"

namespace zerorun {

/// Throws UserError on every rank of the job unless all have the same `settings` (text), and the ranks of
/// each data group, with a tensor plan also those of each tensor group, and with a pipeline all ranks, the
/// same parameters. Call this with the whole model's.
void check_ranks_agree(const ModelParameters& model, const std::string& settings, const Mesh& mesh);

}  // namespace zerorun
