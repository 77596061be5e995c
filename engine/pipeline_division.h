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
};

// A tensor that only other stages have.
struct TensorElsewhere {
  std::string name;
  at::Tensor tensor;
  int stage;  // the first of them
};

/// Returns nothing if the model is not divided. Throws UserError if the mesh has several pipeline stages and
/// options.pipeline is not set, or if its layers do not make up the model.
std::optional<DividedModel> divide_model(const Model& model, const Config& config,
                                         const InitializeOptions& options, const Mesh& mesh);

/// Sets the groups of trained parameters, of which each rank knows those of its stage. A collective of all
/// ranks, which have the same model. Throws UserError if stages have a tied parameter in different groups.
void agree_on_groups(ModelParameters& parameters, const DividedModel& divided, const Mesh& mesh);
/// Leaves in `model` and `parameters`, which are the whole model's, only the tensors of this stage, and sets
/// `tied` of those that other stages have too. Returns the others. A collective of the pipeline ranks. Throws
/// UserError if the config has a setting that tied parameters exclude.
std::vector<TensorElsewhere> keep_stage(Model& model, ModelParameters& parameters,
                                        const DividedModel& divided, const Config& config, const Mesh& mesh);
/// Takes the memory of tensors that other stages have: access to them then throws with the stage's number.
/// Otherwise this rank would compute with initial values that nothing trains.
void leave_to_other_stages(const std::vector<TensorElsewhere>& tensors, int own_stage);

/// All of options.pipeline that must be the same on all ranks, as text to compare.
std::string describe_pipeline(const InitializeOptions& options);

}  // namespace zerorun
