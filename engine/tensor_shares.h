// What each tensor rank has of each parameter: applies the plan of InitializeOptions to a model. Any thread.
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "engine/model_parameters.h"
#include "engine/options.h"

namespace zerorun {

/// Sets the shares of `parameters` that options.tensor_plan names, and moves frozen ones that are split into
/// `frozen`. Does nothing if the mesh has one tensor rank. Throws UserError if the plan does not fit the
/// model, or if the optimizer, an offload setting or a parameter cannot be used in parts.
void split_parameters(ModelParameters& parameters, const Model& model, const Config& config,
                      const InitializeOptions& options, const Mesh& mesh);

/// Whether tensor ranks share a model by a plan that names at least one parameter.
bool has_tensor_plan(const InitializeOptions& options, const Mesh& mesh);
/// Whether a parameter is split among tensor ranks, or has gradients that are summed over them.
bool has_splits(const ModelParameters& parameters);

}  // namespace zerorun
