#include "engine/pipeline_division.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "comm/agreement.h"
#include "engine/host_update.h"
#include "engine/state_placement.h"
#include "zero/interception.h"

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

std::string words_of(const std::vector<PipelineLayer>& layers, const std::vector<int>& begins) {
  std::string words;
  for (size_t stage = 0; stage + 1 < begins.size(); ++stage) {
    const std::string& first = layers[begins[stage]].name;
    const std::string& last = layers[begins[stage + 1] - 1].name;
    words += (stage > 0 ? " | " : "") + first + (first == last ? "" : " to " + last);
  }
  return words;
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
  StagesOf having = stages_of(pipeline.layers, begins);
  check_same_tensors(model, pipeline.layers, having);

  const int stage = mesh.coordinates().pipeline;
  const auto first = pipeline.layers.begin() + begins[stage];
  DividedModel divided{.layers = {first, pipeline.layers.begin() + begins[stage + 1]},
                       .behind = stage > 0 ? std::prev(first)->name : "",
                       .words = words_of(pipeline.layers, begins),
                       .stages = std::move(having)};
  return divided;
}

void agree_on_groups(ModelParameters& parameters, const DividedModel& divided, const Mesh& mesh) {
  const MeshCoordinates& own = mesh.coordinates();
  const at::Tensor groups = at::zeros({static_cast<int64_t>(parameters.trained.size())}, at::kLong);
  auto* data = groups.mutable_data_ptr<int64_t>();
  const auto stages_of = [&](size_t index) -> const std::set<int>& {
    return divided.stages.at(parameters.trained[index].tensor.unsafeGetTensorImpl());
  };
  for (size_t index = 0; index < parameters.trained.size(); ++index) {
    const bool is_giver = *stages_of(index).begin() == own.pipeline && own.data == 0 && own.tensor == 0;
    if (is_giver) data[index] = parameters.trained[index].group;
  }
  mesh.world().all_reduce(groups, "the parameter groups of pipeline stages")->wait();
  on_all_ranks(mesh.world(), "the parameter groups of pipeline stages", [&] {
    for (size_t index = 0; index < parameters.trained.size(); ++index) {
      NamedParameter& parameter = parameters.trained[index];
      const auto agreed = static_cast<int>(data[index]);
      if (stages_of(index).contains(own.pipeline) && parameter.group != agreed) {
        throw UserError("parameter " + parameter.name + " is in parameter group " + std::to_string(agreed) +
                        " on pipeline stage " + std::to_string(*stages_of(index).begin()) +
                        ", and in group " + std::to_string(parameter.group) +
                        " here: put it in the same group on all ranks");
      }
      parameter.group = agreed;
    }
  });
}

std::vector<TensorElsewhere> keep_stage(Model& model, ModelParameters& parameters,
                                        const DividedModel& divided, const Config& config, const Mesh& mesh) {
  const int stage = mesh.coordinates().pipeline;
  const auto stages_of = [&](const at::Tensor& tensor) -> const std::set<int>& {
    return divided.stages.at(tensor.unsafeGetTensorImpl());
  };
  // All ranks make the same groups in the same order.
  std::map<std::set<int>, std::shared_ptr<Communicator>> groups;
  std::vector<TensorElsewhere> elsewhere;
  for (auto* tensors : {&model.parameters, &model.buffers, &model.unsaved_buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const std::set<int>& owners = stages_of(tensor);
      if (owners.size() > 1 && !groups.contains(owners))
        groups[owners] = split_off(owners, name, mesh.along(MeshAxis::pipeline));
      if (!owners.contains(stage)) elsewhere.push_back({name, tensor, *owners.begin()});
    }
    std::erase_if(*tensors, [&](const auto& named) { return !stages_of(named.second).contains(stage); });
  }
  const auto keep_own = [&](auto& tensors) {
    std::erase_if(tensors, [&](const auto& named) { return !stages_of(named.tensor).contains(stage); });
    for (auto& named : tensors) {
      if (stages_of(named.tensor).size() > 1) named.tied = groups.at(stages_of(named.tensor));
    }
  };
  keep_own(parameters.trained);
  keep_own(parameters.frozen);
  keep_own(parameters.unbucketed);
  keep_own(parameters.unsaved);
  for (const NamedParameter& parameter : parameters.trained) {
    if (!parameter.tied || !updates_on_host(config, mesh.data().device())) continue;
    throw UserError("several pipeline stages have the parameter " + parameter.name +
                    ", whose gradients are summed on the GPU, and offload_optimizer updates on the host: use "
                    "one of the two");
  }
  return elsewhere;
}

void leave_to_other_stages(const std::vector<TensorElsewhere>& tensors, int own_stage) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor, stage] : tensors) {
    const std::string message = name + " belongs to pipeline stage " + std::to_string(stage) +
                                ", and this rank is of stage " + std::to_string(own_stage) +
                                ", where it has no values: if a layer of this stage uses it, list it in "
                                "PipelineLayer::tensors of that layer";
    at::Tensor(tensor).set_data(without_memory(tensor, message));
  }
}

std::string describe_pipeline(const InitializeOptions& options) {
  if (!options.pipeline) return "";
  std::string text = " pipeline";
  for (const PipelineLayer& layer : options.pipeline->layers)
    text += " " + layer.name + ":" + std::to_string(layer.tensors.size());
  if (options.pipeline->example) text += " with an example";
  if (const auto& cut = options.pipeline->cut) {
    text += std::string(" by ") + name_of(cut->by);
    for (const double seconds : cut->seconds) text += " " + std::to_string(seconds);
    for (const std::string& first : cut->firsts) text += " " + first;
  }
  return text;
}

}  // namespace zerorun
