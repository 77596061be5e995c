// Applies the program's torch::optim optimizer to shards. Only element-wise optimizers are allowed: they
// update an element from its own gradient and state, so a slice of a bucket can take the place of a
// parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun {

/// What the engine reads and sets in a parameter group of a ForeignOptimizer.
struct ForeignOptions : torch::optim::OptimizerOptions {
  double get_lr() const override { return lr; }
  void set_lr(const double value) override { lr = value; }
  std::unique_ptr<OptimizerOptions> clone() const override { return std::make_unique<ForeignOptions>(*this); }

  double lr = 0;
  double weight_decay = 0;
  std::optional<std::tuple<double, double>> betas;
};

/// An element-wise optimizer of the program that is no class of torch::optim: one written in Python. Its
/// groups have ForeignOptions. step() updates the parameters of its groups, which the engine replaces with
/// shards, by their grad().
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  /// `groups` have ForeignOptions.
  explicit ForeignOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  virtual std::string name() const = 0;
  /// Names of the float32 moments that it keeps for each parameter.
  virtual std::vector<std::string> moments() const = 0;
  /// Adds a shard. From the first step on the moments must be in `memory`, one tensor for each.
  virtual void lend(const at::Tensor& values, int group, const std::vector<at::Tensor>& memory) = 0;
  /// The lent memory has the moments after so many steps.
  virtual void set_steps(int64_t steps) = 0;
};

/// Throws UserError unless `optimizer` is a ForeignOptimizer, or an Adam, AdamW, SGD, Adagrad or RMSprop that
/// has not been stepped.
void check_client_optimizer(const torch::optim::Optimizer& optimizer);

/// Replaces the parameters in the groups of `optimizer` with shards and puts its state in borrowed memory.
/// `optimizer` must have passed check_client_optimizer(). `optimizer`, `device` and `access` must outlive the
/// result, whose destructor restores `optimizer`. step() reads the facts on the host, so on a device with
/// streams each step waits for them.
std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, const BorrowMoment& borrow,
                                                      Device& device = cpu_device(),
                                                      StateAccess& access = state_in_memory());

}  // namespace zerorun
