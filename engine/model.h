// All that the engine uses of a model: names and tensors of its parameters and buffers, and its mode
// (training or inference). model_of() makes it from a torch::nn::Module, python/ from a Python module. A
// plain value.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace zerorun {

struct Model {
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  NamedTensors parameters;  // in the model's order; tied parameters occur under each of their names
  NamedTensors buffers;
  NamedTensors unsaved_buffers;  // those that no checkpoint has (Python: register_buffer(persistent=False))
  /// Whether the model is in training mode; else it is in inference mode. Called on any thread, with the
  /// engine's locks held.
  std::function<bool()> is_training;
  std::function<void(bool)> set_training;  // Engine::train(), Engine::eval()
  torch::nn::Module* module = nullptr;     // whose blocks are marked; null: Python has them
};

/// The module's tensors and mode; undefined tensors are left out. `module` must outlive the callbacks.
Model model_of(torch::nn::Module& module);

}  // namespace zerorun
