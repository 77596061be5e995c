// Shards with reproducible contents for the tests of optim/. A shard is a whole tensor, or one rank's slice
// of it.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun::testing {

/// `numel` random values between -1 and 1. `seed` determines them, and none is exactly 0.
at::Tensor uniform(int64_t numel, uint64_t seed);

/// The gradient of tensor number `index` in step `step`.
at::Tensor gradient_of(int64_t index, int step, int64_t numel);

/// Test tensors with their gradients and parameter groups.
struct Tensors {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<int> groups;

  void add(int64_t numel, int group = 0);
  /// Sets the gradient of tensor i to gradient_of(i, step).
  void set_gradients(int step);
  /// Splits every tensor into `slices` shards of equal length over the same memory.
  std::vector<Shard> shards(int slices = 1) const;
};

/// Callbacks that return a new zero-filled tensor for each moment. lend_counted() also adds the tensors'
/// bytes to `bytes`.
BorrowMoment lend();
BorrowMoment lend_counted(int64_t& bytes);

/// Optimizer configs with weight decay, and with hyperparameters that differ from the defaults.
AdamConfig adam(bool decoupled = true);
SgdConfig sgd(double momentum);
AdagradConfig adagrad();
RmspropConfig rmsprop(double momentum, bool centered);
LionConfig lion();
/// All of these optimizers, in each variant that differs in its formula or its moments.
std::vector<OptimizerConfig> all_optimizers();

inline void no_update(int) {}

/// StepFacts in a tensor. The optimizer divides gradients by `divisor` and applies them; if `apply` is false,
/// it skips the step.
at::Tensor facts(double divisor, bool apply = true);

}  // namespace zerorun::testing
