// An optimizer over the slices of buckets that this rank updates. Owned by the engine, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"

namespace zerorun {

/// A slice of a bucket: 1-D tensors of equal length, start aligned to 64 bytes.
struct Shard {
  at::Tensor values;    // float32 (master weights under 16-bit training), updated in place
  at::Tensor gradient;  // float32, bfloat16 or float16; may be overwritten by the update
  at::Tensor rounded;   // bfloat16 or float16: every update writes `values` rounded; undefined: not wanted
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
  /// What it keeps beside the state.
  virtual int64_t buffer_bytes() const { return 0; }
  /// Optimizer state per parameter in bytes, for the ZeRO formula (8 for Adam).
  virtual int moment_bytes() const = 0;
};

/// AdamW, Adam or SGD as ds_config.json describes them; one config a group. Gradients are multiplied with
/// 1/divisor in float32 and left as they are; a shard is one pass over its memory, shared by LibTorch's
/// intra-op threads, and its bits depend on neither their number nor the processor.
std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards);

}  // namespace zerorun
