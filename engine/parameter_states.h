// Reads and writes the fp32 weights, optimizer states and gradient of one parameter: all elements, not only
// those of this rank's slice. Collectives, used by the engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zerorun {

class ParameterStates {
 public:
  explicit ParameterStates(Engine& engine) : state_(engine.state_) {}

  /// The names of the parameter's states except values and gradient: "master" (the fp32 master weights under
  /// 16-bit training) and torch.optim's names of moments ("exp_avg"). `parameter`: a parameter of the
  /// engine's model; a frozen one has no such states. Every function with a `parameter` throws UserError for
  /// any other tensor. names(), read() and write() throw UserError between backward() and step().
  std::vector<std::string> names(const at::Tensor& parameter) const;
  /// Returns a copy of the state on the engine's device, in the parameter's shape, the same on all ranks.
  /// Throws UserError if there is no state of this name.
  at::Tensor read(const at::Tensor& parameter, const std::string& name) const;
  /// `values`: in the parameter's shape, the same on all ranks. Writing "master" leaves the model's 16-bit
  /// values as they are until the next update. To change both at once, also write the same values to the
  /// parameter in place: other values would replace "master" (zero/master_weights.h).
  void write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values);
  /// Returns a copy of the averaged gradient in fp32, which the next step() clips and applies, without the
  /// loss scale; zeros if no rank's backward reached the parameter. May be called only between the last
  /// backward() before an optimizer step and that step(); else throws UserError.
  at::Tensor read_gradient(const at::Tensor& parameter) const;
  /// Replaces the gradient that read_gradient() returns. `values`: in the parameter's shape, the same on all
  /// ranks. May be called when read_gradient() may. The next step() is skipped if a gradient of backward()
  /// was infinite or NaN, even if that gradient has been replaced.
  void write_gradient(const at::Tensor& parameter, const at::Tensor& values);
  /// Whether this rank alone may read parameters by operators: true if gathers need no other rank, as for
  /// ranks that share the memory of parameters. No collective; never throws.
  bool may_read_alone() const;
  /// Whether this rank keeps all values of the parameter in memory of its own, at any time: it is neither
  /// partitioned nor in memory that ranks share.
  bool stays_whole(const at::Tensor& parameter) const;
  /// Whether a part of the parameter is here, and the other parts on other tensor ranks.
  bool is_split(const at::Tensor& parameter) const;
  /// The sizes of the whole parameter. Its tensor has them unless it is_split(), and then in a
  /// GatheredParameters scope.
  std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const;
  /// False once another engine, made later, has taken a parameter of this one (engine/parameter_owners.h).
  /// Never throws.
  bool has_parameters() const;

 private:
  std::optional<int> find_in_buckets(const at::Tensor& parameter) const;
  std::optional<int> find(const at::Tensor& parameter) const;
  int find_trained(const at::Tensor& parameter, const std::string& wanted) const;
  int find_complete_gradient(const at::Tensor& parameter, const std::string& call) const;
  bool is_summed(int parameter) const;
  void check_shape(int parameter, const std::string& what, const at::Tensor& values) const;
  at::Tensor part_of(int parameter, const at::Tensor& values) const;
  at::Tensor gather(int parameter, const at::Tensor& own, const std::string& what) const;

  std::shared_ptr<EngineState> state_;
};

}  // namespace zerorun
