// Shards with reproducible contents: whole tensors, or the slices of several ranks.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun::testing {

/// `numel` values between -1 and 1, never exactly 0, determined by `seed`.
at::Tensor uniform(int64_t numel, uint64_t seed);

/// The gradient of tensor number `index` in step `step`.
at::Tensor gradient_of(int64_t index, int step, int64_t numel);

/// Test tensors with their gradients and parameter groups.
struct Tensors {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<int> groups;

  void add(int64_t numel, int group = 0);
  /// Sets the gradients to those of `step`.
  void set_gradients(int step);
  /// Splits every tensor into `slices` shards of equal length over the same memory.
  std::vector<Shard> shards(int slices = 1) const;
};

/// Lends new tensors as moments; lend_counted() adds up their bytes.
BorrowMoment lend();
BorrowMoment lend_counted(int64_t& bytes);

/// Configs with hyperparameters other than the defaults, with weight decay.
AdamConfig adam(bool decoupled = true);
SgdConfig sgd(double momentum);
AdagradConfig adagrad();
RmspropConfig rmsprop(double momentum, bool centered);
LionConfig lion();
/// Each of these in every variant that differs in formula or moments.
std::vector<OptimizerConfig> all_optimizers();

inline void no_update(int) {}

/// StepFacts that make an optimizer divide gradients by `divisor` and, unless `apply` is false, apply them.
at::Tensor facts(double divisor, bool apply = true);

}  // namespace zerorun::testing
