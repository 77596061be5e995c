// An optimizer over the slices of buckets that this rank updates. Owned by the engine, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"

namespace zerorun {

/// A slice of a bucket: 1-D float32 tensors of equal length, start aligned to 64 bytes.
struct Shard {
  at::Tensor values;    // updated in place
  at::Tensor gradient;  // may be overwritten by the update
  int group;            // parameter group
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;

  /// One step: every gradient is divided by `gradient_divisor`, then applied. `updated(i)` is called once for
  /// each shard, in order, as soon as its values are final.
  virtual void step(double gradient_divisor, const std::function<void(int)>& updated) = 0;

  virtual double lr(int group) const = 0;
  virtual void set_lr(int group, double lr) = 0;
  virtual int groups() const = 0;
  virtual int64_t state_bytes() const = 0;
  /// Optimizer state per parameter in bytes, for the ZeRO formula (8 for Adam).
  virtual int moment_bytes() const = 0;
};

/// AdamW, Adam or SGD as ds_config.json describes them, fused over memory by LibTorch; one config a group.
std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards);

}  // namespace zerorun
