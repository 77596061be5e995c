// Which part of a model this rank's pipeline stage has: its layers, and their tensors. Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/mesh.h"
#include "config/config.h"
#include "engine/model.h"
#include "engine/model_parameters.h"
#include "engine/options.h"

namespace zerorun {

struct DividedModel {
  Model model;  // the tensors of this stage's layers, under their names in the whole model
  std::vector<PipelineLayer> layers;
  std::string behind;  // the name of the layer before the first one; empty on the first stage
  /// The parameters that other stages have too, with the ranks that have them (NamedParameter::tied).
  std::unordered_map<c10::TensorImpl*, std::shared_ptr<Communicator>> tied;
};

/// Returns nothing if the model is not divided. A collective of the pipeline ranks if parameters are tied.
/// Throws UserError if the mesh has several pipeline stages and options.pipeline is not set, or if its layers
/// do not make up the model.
std::optional<DividedModel> divide_model(const Model& model, const Config& config,
                                         const InitializeOptions& options, const Mesh& mesh);

/// Sets NamedParameter::tied. Throws UserError if the config has a setting that tied parameters exclude.
void mark_tied(ModelParameters& parameters, const DividedModel& divided, const Config& config,
               const Mesh& mesh);

/// All of options.pipeline that must be the same on all ranks, as text to compare.
std::string describe_pipeline(const InitializeOptions& options);

}  // namespace zerorun
