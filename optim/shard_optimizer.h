// An optimizer over the slices of buckets that this rank updates. Owned by the engine, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "config/config.h"
#include "device/device.h"

namespace zerorun {

/// A slice of a bucket: 1-D tensors of equal length on one device, start aligned as the device wants it.
struct Shard {
  at::Tensor values;    // float32 (master weights under 16-bit training), updated in place
  at::Tensor gradient;  // float32, bfloat16 or float16; may be overwritten by the update
  at::Tensor rounded;   // bfloat16 or float16: every update writes `values` rounded; undefined: not wanted
  int group;            // parameter group
  int bucket = 0;
  int rank = 0;  // whose slice of the bucket it is
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;

  /// Whether step() reads the facts itself: then they are in the host's memory and say that gradients are to
  /// be applied. Else they are in memory of the shards' device, and nobody may know yet what they say.
  virtual bool reads_facts() const { return false; }
  /// Whether gradients are made into something else before they are clipped and applied.
  virtual bool has_directions() const { return false; }
  /// Does that, for gradients that are finite: they are divided by `divisor` before. Returns what step() will
  /// apply, by shard, divided by what is left: the clipping. A collective.
  virtual std::span<const at::Tensor> make_directions(double /*divisor*/) { return {}; }
  /// One step on the current stream, as `facts` say (device/step_facts.h): every gradient is divided by their
  /// divisor, then applied, or nothing is. `updated(i)` is called once for each shard, in order, as soon as
  /// its update has been asked for.
  virtual void step(const at::Tensor& facts, const std::function<void(int)>& updated) = 0;
  /// The facts of the last step said that nothing is to be applied: it does not count.
  virtual void take_back_step() {}

  virtual double lr(int group) const = 0;
  virtual void set_lr(int group, double lr) = 0;
  /// Absent where the optimizer has none.
  virtual std::optional<std::pair<double, double>> betas(int group) const = 0;
  /// Of an optimizer that has them; bias corrections are those of the new ones from the first step on.
  virtual void set_betas(int group, std::pair<double, double> betas) = 0;
  virtual int groups() const = 0;
  virtual int64_t state_bytes() const = 0;
  /// What it keeps beside the state.
  virtual int64_t buffer_bytes() const { return 0; }
  /// Optimizer state per parameter of a group in bytes, for the ZeRO formula (8 for Adam).
  virtual int moment_bytes(int group) const = 0;
};

/// Whether the parameters that the config's optimizer of this type updates have betas.
constexpr bool has_betas(OptimizerType type) {
  switch (type) {
    case OptimizerType::adam_w:
    case OptimizerType::adam:
    case OptimizerType::lion:
    case OptimizerType::lamb:
      return true;
    default:
      return false;
  }
}

/// An optimizer as ds_config.json describes it; one config a group, all of the same type. Gradients are
/// multiplied with 1/divisor in float32 and left as they are; a shard is one pass over its memory, and its
/// bits do not depend on where it runs. `device` outlives the result.
std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards,
                                                     Device& device = cpu_device());

}  // namespace zerorun
