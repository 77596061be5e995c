// One parameter's fp32 weights and optimizer states, whole, for a program that looks at them or sets them
// between steps. Collectives, used by the engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zerorun {

class ParameterStates {
 public:
  explicit ParameterStates(Engine& engine) : state_(engine.state_) {}

  /// The names of the parameter's states beside its values and gradient: "master" (fp32 weights of training
  /// in 16 bits), and as torch.optim names them ("exp_avg"). `parameter` is the engine's model's; a frozen
  /// one has none. All functions throw UserError for another tensor, and between backward() and step().
  std::vector<std::string> names(const at::Tensor& parameter) const;
  /// A copy on the engine's device, in the parameter's shape, the same on all ranks. Throws UserError if
  /// there is no state of this name.
  at::Tensor read(const at::Tensor& parameter, const std::string& name) const;
  /// `values`: in the parameter's shape, the same on all ranks. "master" does not change the rounded values
  /// in which the model computes until the next update: write to the parameter before.
  void write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values);

 private:
  int find(const at::Tensor& parameter, const std::string& name) const;

  std::shared_ptr<EngineState> state_;
};

}  // namespace zerorun
