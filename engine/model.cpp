#include "engine/model.h"

#include <torch/nn/module.h>

namespace zerorun {
namespace {

Model::NamedTensors defined(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  Model::NamedTensors result;
  for (const auto& item : tensors) {
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  }
  return result;
}

}  // namespace

Model model_of(torch::nn::Module& module) {
  return {.parameters = defined(module.named_parameters()),
          .buffers = defined(module.named_buffers()),
          .unsaved_buffers = {},
          .is_training = [&module] { return module.is_training(); },
          .set_training = [&module](bool trains) { module.train(trains); },
          .module = &module};
}

}  // namespace zerorun
