// What the engine knows of a model: names and tensors of its parameters and buffers, and its mode. Made from
// a torch::nn::Module by model_of(), from a Python module by python/. A plain value.
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

  NamedTensors parameters;  // in the model's order; a tied one under each of its names
  NamedTensors buffers;
  /// Whether the model trains; else it infers. Called on any thread, with the engine's locks held.
  std::function<bool()> is_training;
  std::function<void(bool)> set_training;  // Engine::train(), Engine::eval()
};

/// The module's tensors and mode; undefined tensors are left out. `module` must outlive the callbacks.
Model model_of(torch::nn::Module& module);

}  // namespace zerorun
