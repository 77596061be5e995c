// The interface of optimizers that update bucket slices. Owned by the engine, used by its thread.
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

/// A parameter's elements in a shard whose bfloat16 state is rounded at random.
struct RandomRun {
  int64_t begin;  // of the run in the shard
  int64_t numel;
  uint64_t key;   // of the parameter's name and the seed
  int64_t first;  // index in the parameter of the run's first element
};

/// A slice of a bucket, or a chunk of a slice whose state is in files. Its tensors are 1-D, of equal length,
/// on one device and aligned to Device::alignment(). The chunks of a slice are consecutive in the list of
/// shards, and their gradients are contiguous in memory.
struct Shard {
  at::Tensor values;    // float32 (master weights under 16-bit training) or bfloat16, updated in place
  at::Tensor gradient;  // float32, bfloat16 or float16; may be overwritten by the update
  at::Tensor rounded;   // bfloat16 or float16: receives the float32 `values` rounded; undefined: not written
  int group;            // parameter group
  int bucket = 0;
  int rank = 0;                      // the rank that owns the slice
  int64_t begin = 0;                 // offset of the shard in the slice, in elements
  std::vector<RandomRun> runs = {};  // all parameters' elements; empty: updates round to nearest
};

/// One moment of a shard: 1-D values of the shard's length, which are float32, bfloat16, or codes with their
/// scales (device/moment_codes.h).
struct MomentMemory {
  MomentMemory(at::Tensor of_elements = {}, at::Tensor of_blocks = {})
      : values(std::move(of_elements)), scales(std::move(of_blocks)) {}

  at::Tensor values;
  at::Tensor scales;  // undefined without codes
};

/// Returns the memory of one moment of a shard, initially zero. `name` is the moment's name in torch.optim.
/// The same shard and name always give the same memory, which outlives the optimizer.
using BorrowMoment = std::function<MomentMemory(const Shard& shard, const char* name)>;

enum class ShardUse {
  moments,  // changes moments, reads values
  update,   // changes values, and may change moments
};

/// Loads values and moments of shards into memory around their use, if they are not always in memory.
class StateAccess {
 public:
  virtual ~StateAccess() = default;
  /// Whether step() should process the shards from last to first this time, because the last shards of the
  /// previous step are still in memory.
  virtual bool goes_backwards() const { return false; }
  /// Announces the order in which shards will be opened.
  virtual void plan(std::span<const int> /*shards*/) {}
  /// Until close(), the shard's values and moments may be accessed; with ShardUse::update, `rounded` too.
  virtual void open(int /*shard*/, ShardUse /*use*/) {}
  /// `use`: as in open().
  virtual void close(int /*shard*/, ShardUse /*use*/) {}
};

/// The access to shards that are always in memory.
StateAccess& state_in_memory();

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;

  /// Whether step() reads the facts on the host. If so, the caller passes them in host memory, with `apply`
  /// set. If not, they are in memory of the shards' device and may not be computed yet.
  virtual bool reads_facts() const { return false; }
  /// Whether make_directions() transforms gradients before they are clipped and applied.
  virtual bool has_directions() const { return false; }
  /// Divides the gradients, which are finite, by `divisor` and transforms them into directions. Returns the
  /// directions for this rank's slices, by bucket. After this call step() divides the directions only by
  /// the clip divisor. A collective.
  virtual std::span<const at::Tensor> make_directions(double /*divisor*/) { return {}; }
  /// One step on the current stream: divides gradients by the divisor of `facts` (StepFacts in
  /// device/step_facts.h) and applies them, or does nothing if `apply` of the facts is 0. Calls `updated(i)`
  /// once for each shard, as soon as its update is enqueued.
  virtual void step(const at::Tensor& facts, const std::function<void(int)>& updated) = 0;
  /// The number of steps. step() adds 1 to it. set_steps() corrects it after a step that was skipped because
  /// of its facts, and sets it when a checkpoint is loaded.
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;
  /// Call this before a step, and before moments are read, written or saved. Takes over what the program has
  /// changed in an optimizer of its own. Throws UserError for changes that the engine cannot follow.
  virtual void follow_program() {}

  virtual double lr(int group) const = 0;
  virtual void set_lr(int group, double lr) = 0;
  /// Absent if the optimizer has no betas.
  virtual std::optional<std::pair<double, double>> betas(int group) const = 0;
  /// The optimizer must have betas. Bias corrections are computed as if every step so far had used the new
  /// betas.
  virtual void set_betas(int group, std::pair<double, double> betas) = 0;
  virtual void set_weight_decay(int group, double weight_decay) = 0;
  virtual int groups() const = 0;
  /// Bytes of the optimizer's own buffers, without the moments that it borrowed.
  virtual int64_t buffer_bytes() const { return 0; }
};

/// An optimizer of ds_config.json; `groups` has one config per parameter group. It multiplies gradients by
/// 1/divisor in float32 and leaves them unchanged in memory. It updates a shard in one pass over memory, and
/// the result has the same bits on every device. `device` and `access` must outlive the result.
std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards, const BorrowMoment& borrow,
                                                     Device& device = cpu_device(),
                                                     StateAccess& access = state_in_memory());

}  // namespace zerorun
