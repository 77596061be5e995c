// Which part of a model this rank's pipeline stage has: its layers, and their tensors. Any thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
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
  std::vector<PipelineLayer> layers;  // of this stage
  std::string behind;                 // the name of the layer before the first one; empty on the first stage
  std::string words;                  // the layers of all stages: "embedding to h.1 | h.2 to head"
  /// The stages that have a tensor, for each of the model.
  std::unordered_map<c10::TensorImpl*, std::set<int>> stages;
  /// Of parameters that this stage and others have: the ranks that have them (NamedParameter::tied).
  std::unordered_map<c10::TensorImpl*, std::shared_ptr<Communicator>> tied;
};

/// Returns nothing if the model is not divided. A collective of the pipeline ranks if parameters are tied.
/// Throws UserError if the mesh has several pipeline stages and options.pipeline is not set, or if its layers
/// do not make up the model.
std::optional<DividedModel> divide_model(const Model& model, const Config& config,
                                         const InitializeOptions& options, const Mesh& mesh);

/// Leaves in `model` and `parameters`, which are the whole model's, only the tensors of this stage, and sets
/// NamedParameter::tied. Returns the names of those outside of buckets that an earlier stage has too. Throws
/// UserError if the config has a setting that tied parameters exclude.
std::set<std::string> keep_stage(Model& model, ModelParameters& parameters, const DividedModel& divided,
                                 const Config& config, const Mesh& mesh);

/// All of options.pipeline that must be the same on all ranks, as text to compare.
std::string describe_pipeline(const InitializeOptions& options);

}  // namespace zerorun
