// One parameter's fp32 weights, optimizer states and gradient, whole, for a program that looks at them or
// sets them. Collectives, used by the engine's thread.
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
  /// one has none. All functions throw UserError for another tensor, and all but read_gradient() between
  /// backward() and step().
  std::vector<std::string> names(const at::Tensor& parameter) const;
  /// A copy on the engine's device, in the parameter's shape, the same on all ranks. Throws UserError if
  /// there is no state of this name.
  at::Tensor read(const at::Tensor& parameter, const std::string& name) const;
  /// `values`: in the parameter's shape, the same on all ranks. "master" does not change the rounded values
  /// in which the model computes until the next update: write to the parameter before.
  void write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values);
  /// A copy of the averaged gradient in fp32: what the next step() clips and applies, without the loss scale;
  /// zeros if no rank's backward reached the parameter. Only between the last backward() before an optimizer
  /// step and that step(); else throws UserError.
  at::Tensor read_gradient(const at::Tensor& parameter) const;
  /// Whether this rank may read parameters by operators that the other ranks do not run, as ranks that share
  /// the memory of parameters may. No collective; never throws.
  bool may_read_alone() const;

 private:
  int find(const at::Tensor& parameter) const;
  at::Tensor gather(int parameter, const at::Tensor& own, const std::string& what) const;

  std::shared_ptr<EngineState> state_;
};

}  // namespace zerorun
