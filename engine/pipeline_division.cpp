#include "engine/pipeline_division.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/describe.h"
#include "base/error.h"
#include "engine/state_placement.h"

namespace zerorun {
namespace {

// The stages that have a tensor, ascending.
using StagesOf = std::unordered_map<c10::TensorImpl*, std::set<int>>;

StagesOf stages_of(const std::vector<PipelineLayer>& layers, const std::vector<int>& begins) {
  StagesOf stages;
  for (size_t stage = 0; stage + 1 < begins.size(); ++stage) {
    for (int layer = begins[stage]; layer < begins[stage + 1]; ++layer) {
      for (const at::Tensor& tensor : layers[layer].tensors)
        stages[tensor.unsafeGetTensorImpl()].insert(static_cast<int>(stage));
    }
  }
  return stages;
}

// Throws UserError unless the layers have exactly the model's tensors.
void check_same_tensors(const Model& model, const std::vector<PipelineLayer>& layers,
                        const StagesOf& stages) {
  std::set<c10::TensorImpl*> of_model;
  for (const auto* tensors : {&model.parameters, &model.buffers, &model.unsaved_buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      of_model.insert(tensor.unsafeGetTensorImpl());
      if (stages.contains(tensor.unsafeGetTensorImpl())) continue;
      throw UserError(name +
                      " is in no layer of the pipeline: list it in PipelineLayer::tensors of the "
                      "layer that uses it");
    }
  }
  for (const PipelineLayer& layer : layers) {
    for (const at::Tensor& tensor : layer.tensors) {
      if (of_model.contains(tensor.unsafeGetTensorImpl())) continue;
      throw UserError(c10::str("layer ", layer.name, " of the pipeline has a tensor of sizes ",
                               tensor.sizes(),
                               " that is no parameter or buffer of the model: register it in the model"));
    }
  }
}

Model::NamedTensors those_of(int stage, const Model::NamedTensors& tensors, const StagesOf& stages) {
  Model::NamedTensors own;
  for (const auto& [name, tensor] : tensors) {
    if (stages.at(tensor.unsafeGetTensorImpl()).contains(stage)) own.emplace_back(name, tensor);
  }
  return own;
}

// The stages of `tied` as a group of the pipeline's ranks, and each other stage as a group of its own.
std::shared_ptr<Communicator> split_off(const std::set<int>& tied, const std::string& parameter,
                                        Communicator& pipeline) {
  std::vector<RankGroup> groups{{.name = "stages with " + parameter, .ranks = {tied.begin(), tied.end()}}};
  for (int stage = 0; stage < pipeline.world_size(); ++stage) {
    if (!tied.contains(stage)) groups.push_back({.name = "stage " + std::to_string(stage), .ranks = {stage}});
  }
  return pipeline.split(groups);
}

}  // namespace

std::optional<DividedModel> divide_model(const Model& model, const Config& config,
                                         const InitializeOptions& options, const Mesh& mesh) {
  const int stages = mesh.sizes().pipeline;
  if (!options.pipeline) {
    if (stages == 1) return std::nullopt;
    throw UserError("the mesh has " + std::to_string(stages) +
                    " pipeline stages (zerorun.mesh, pipeline.stages), and no list of layers says how they "
                    "divide the model: set InitializeOptions::pipeline (Python: PipelineModule); "
                    "docs/pipeline.md has examples");
  }
  if (options.pipeline->layers.empty()) return std::nullopt;
  Pipeline pipeline = *options.pipeline;
  if (!pipeline.cut) {
    const bool uniform = config.pipeline.partition == PipelineConfig::Partition::uniform;
    pipeline.cut = PipelineCut{.by = uniform ? PipelineCut::By::number : PipelineCut::By::bytes};
  }
  const std::vector<int> begins = divide_layers(pipeline, stages);
  const StagesOf having = stages_of(pipeline.layers, begins);
  check_same_tensors(model, pipeline.layers, having);

  const int stage = mesh.coordinates().pipeline;
  const int begin = begins[stage];
  DividedModel divided{
      .model = {.parameters = those_of(stage, model.parameters, having),
                .buffers = those_of(stage, model.buffers, having),
                .unsaved_buffers = those_of(stage, model.unsaved_buffers, having),
                .is_training = model.is_training,
                .set_training = model.set_training},
      .layers = {pipeline.layers.begin() + begin, pipeline.layers.begin() + begins[stage + 1]},
      .behind = begin > 0 ? pipeline.layers[begin - 1].name : "",
      .tied = {}};
  std::map<std::set<int>, std::shared_ptr<Communicator>> groups;
  for (const auto& [name, tensor] : model.parameters) {
    const std::set<int>& owners = having.at(tensor.unsafeGetTensorImpl());
    if (owners.size() == 1) continue;
    auto [group, is_new] = groups.try_emplace(owners);
    if (is_new) group->second = split_off(owners, name, mesh.along(MeshAxis::pipeline));
    if (owners.contains(stage)) divided.tied[tensor.unsafeGetTensorImpl()] = group->second;
  }
  return divided;
}

void mark_tied(ModelParameters& parameters, const DividedModel& divided, const Config& config,
               const Mesh& mesh) {
  parameters.is_divided = true;
  for (NamedParameter& parameter : parameters.trained) {
    const auto found = divided.tied.find(parameter.tensor.unsafeGetTensorImpl());
    if (found == divided.tied.end()) continue;
    parameter.tied = found->second;
    if (!updates_on_host(config, mesh.data().device())) continue;
    throw UserError("several pipeline stages have the parameter " + parameter.name +
                    ", whose gradients are summed on the GPU, and offload_optimizer updates on the host: use "
                    "one of the two");
  }
}

std::string describe_pipeline(const InitializeOptions& options) {
  if (!options.pipeline) return "";
  std::string text = " pipeline";
  for (const PipelineLayer& layer : options.pipeline->layers)
    text += " " + layer.name + ":" + std::to_string(layer.tensors.size());
  if (const auto& cut = options.pipeline->cut) {
    text += std::string(" by ") + name_of(cut->by);
    for (const double seconds : cut->seconds) text += " " + std::to_string(seconds);
    for (const std::string& first : cut->firsts) text += " " + first;
  }
  return text;
}

}  // namespace zerorun
