// Reads and writes the fp32 weights and optimizer states of one parameter between steps: all elements, not
// only those of this rank's slice. Collectives, used by the engine's thread.
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

  /// The names of the parameter's states except values and gradient: "master" (the fp32 master weights under
  /// 16-bit training) and torch.optim's names of moments ("exp_avg"). `parameter`: a parameter of the
  /// engine's model that is in a bucket; a frozen one has no such states. All functions throw UserError for
  /// any other tensor, and between backward() and step().
  std::vector<std::string> names(const at::Tensor& parameter) const;
  /// Returns a copy of the state on the engine's device, in the parameter's shape, the same on all ranks.
  /// Throws UserError if there is no state of this name.
  at::Tensor read(const at::Tensor& parameter, const std::string& name) const;
  /// `values`: in the parameter's shape, the same on all ranks. Writing "master" leaves the model's 16-bit
  /// values as they are until the next update. To change both at once, also write the same values to the
  /// parameter in place: other values would replace "master" (zero/buckets.h, [Note: master weights]).
  void write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values);

 private:
  int find(const at::Tensor& parameter, const std::string& name) const;

  std::shared_ptr<EngineState> state_;
};

}  // namespace zerorun
