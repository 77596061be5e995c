// A model as a list of layers, which pipeline stages divide among themselves: the description that a program
// gives to initialize(). Plain values; the engine's thread calls the functions.
//
//   zerorun::Pipeline pipeline;
//   pipeline.layers.push_back(zerorun::layer_of("embedding", *model->embedding));
//   for (auto& block : *model->blocks) pipeline.layers.push_back(zerorun::layer_of(...));
//   pipeline.loss = [](const Tensors& outputs, const Tensors& labels) { return cross_entropy(...); };
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/cut.h"

namespace zerorun {

using Tensors = std::vector<at::Tensor>;

struct PipelineLayer {
  std::string name;  // for messages and for PipelineCut
  /// The parameters and buffers of the model that `forward` uses. A parameter of several layers is tied: the
  /// stages that have it sum its gradients.
  Tensors tensors;
  /// Takes the outputs of the layer before; the first layer takes MicroBatch::inputs. Outputs may be of any
  /// dtype and number. Integer and bool tensors pass without gradients.
  std::function<Tensors(const Tensors&)> forward;
};

/// A layer of a module that takes and returns one tensor. `module` must outlive the engine.
template <typename Module>
PipelineLayer layer_of(std::string name, Module& module) {
  Tensors tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return {.name = std::move(name),
          .tensors = std::move(tensors),
          .forward = [&module](const Tensors& inputs) { return Tensors{module.forward(inputs.at(0))}; }};
}

/// The samples of one data rank in one micro-step. Only the first stage uses `inputs`, and only the last one
/// `labels`.
struct MicroBatch {
  Tensors inputs;
  Tensors labels;
};

struct Pipeline {
  std::vector<PipelineLayer> layers;
  /// The loss of one micro-batch from the outputs of the last layer: a tensor of one element.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& labels)> loss;
  std::optional<PipelineCut> cut = {};  // default: as the config's pipeline.partition says
  /// If given, initialize() runs the forwards and the loss of this micro-batch, in evaluation mode, so that
  /// layers that do not fit together are found there. On all ranks, or on none.
  std::optional<MicroBatch> example = {};
};

/// Where each stage's layers begin: stage s has layers begins[s] to begins[s + 1]. `cut` is set. Throws
/// UserError if the layers cannot be divided among `stages` stages.
std::vector<int> divide_layers(const Pipeline& pipeline, int stages);

}  // namespace zerorun
