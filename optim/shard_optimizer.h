// An optimizer over the slices of buckets that this rank updates. Owned by the engine, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "config/config_types.h"
#include "device/device.h"

namespace zerorun {

/// A slice of a bucket, or a chunk of one whose state is not all in memory at a time: 1-D tensors of equal
/// length on one device, start aligned as the device wants it. Chunks of a slice come one behind the other,
/// and so do their gradients in memory.
struct Shard {
  at::Tensor values;    // float32 (master weights under 16-bit training), updated in place
  at::Tensor gradient;  // float32, bfloat16 or float16; may be overwritten by the update
  at::Tensor rounded;   // bfloat16 or float16: every update writes `values` rounded; undefined: not wanted
  int group;            // parameter group
  int bucket = 0;
  int rank = 0;       // whose slice of the bucket it is
  int64_t begin = 0;  // its first element, counted from the slice's
};

/// Lends memory for what an optimizer remembers of a shard, under torch.optim's name for it: 1-D float32 of
/// the shard's length, zero-filled, the same for the same name. It outlives the optimizer.
using BorrowMoment = std::function<at::Tensor(const Shard& shard, const char* name)>;

enum class ShardUse {
  moments,  // are changed; values are read
  update,   // values are changed, and moments may be
};

/// Brings values and moments of shards to memory around their use, where they are not always there.
class StateAccess {
 public:
  virtual ~StateAccess() = default;
  /// Whether to go through the shards from last to first this time: what was used last is in memory still.
  virtual bool goes_backwards() const { return false; }
  /// The order in which shards will be opened.
  virtual void plan(std::span<const int> /*shards*/) {}
  /// Those of the shard may be accessed until it is closed; `rounded` where values are to be updated.
  virtual void open(int /*shard*/, ShardUse /*use*/) {}
  /// `use`: as it was opened.
  virtual void close(int /*shard*/, ShardUse /*use*/) {}
  /// The update is asked for: nothing is open, and nothing of it is opened again.
  virtual void finish() {}
};

/// Where all are always there.
StateAccess& state_in_memory();

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;

  /// Whether step() reads the facts itself: then they are in the host's memory and say that gradients are to
  /// be applied. Else they are in memory of the shards' device, and nobody may know yet what they say.
  virtual bool reads_facts() const { return false; }
  /// Whether gradients are made into something else before they are clipped and applied.
  virtual bool has_directions() const { return false; }
  /// Does that, for gradients that are finite: they are divided by `divisor` before. Returns what step() will
  /// apply to this rank's slices, by bucket, divided by what is left: the clipping. A collective.
  virtual std::span<const at::Tensor> make_directions(double /*divisor*/) { return {}; }
  /// One step on the current stream, as `facts` say (device/step_facts.h): every gradient is divided by their
  /// divisor, then applied, or nothing is. `updated(i)` is called once for each shard, as soon as its update
  /// has been asked for.
  virtual void step(const at::Tensor& facts, const std::function<void(int)>& updated) = 0;
  /// How many steps count: all that were taken, until set_steps() says otherwise (the facts of one said that
  /// nothing is to be applied; what it remembers is that of another run).
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;

  virtual double lr(int group) const = 0;
  virtual void set_lr(int group, double lr) = 0;
  /// Absent where the optimizer has none.
  virtual std::optional<std::pair<double, double>> betas(int group) const = 0;
  /// Of an optimizer that has them; bias corrections are those of the new ones from the first step on.
  virtual void set_betas(int group, std::pair<double, double> betas) = 0;
  virtual int groups() const = 0;
  /// What it keeps beside what it has borrowed.
  virtual int64_t buffer_bytes() const { return 0; }
};

/// An optimizer as ds_config.json describes it; one config a group, all of the same type. Gradients are
/// multiplied with 1/divisor in float32 and left as they are; a shard is one pass over its memory, and its
/// bits do not depend on where it runs. `device` and `access` outlive the result.
std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards, const BorrowMoment& borrow,
                                                     Device& device = cpu_device(),
                                                     StateAccess& access = state_in_memory());

}  // namespace zerorun
