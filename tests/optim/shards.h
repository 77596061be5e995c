// Shards with reproducible contents, as whole tensors or as the slices of several ranks.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun::testing {

/// `numel` values between -1 and 1 that only `seed` decides, never exactly 0.
at::Tensor uniform(int64_t numel, uint64_t seed);

/// The gradient of tensor number `index` in step `step`.
at::Tensor gradient_of(int64_t index, int step, int64_t numel);

/// Tensors of one size each, all in parameter group `group`.
struct Tensors {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<int> groups;

  void add(int64_t numel, int group = 0);
  /// Fills the gradients with those of `step`.
  void set_gradients(int step);
  /// Every tensor as `slices` shards of equal length, over the same memory.
  std::vector<Shard> shards(int slices = 1) const;
};

/// Lends moments that nobody else has; counts their bytes.
BorrowMoment lend();
BorrowMoment lend_counted(int64_t& bytes);

/// Hyperparameters that are not the defaults, with weight decay.
AdamConfig adam(bool decoupled = true);
SgdConfig sgd(double momentum);
AdagradConfig adagrad();
RmspropConfig rmsprop(double momentum, bool centered);
LionConfig lion();
/// Each of them in every variant that has another formula or other moments.
std::vector<OptimizerConfig> all_optimizers();

inline void no_update(int) {}

/// What tells an optimizer to divide gradients by `divisor` and, unless `apply` is false, to apply them.
at::Tensor facts(double divisor, bool apply = true);

}  // namespace zerorun::testing
