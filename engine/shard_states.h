// The optimizer's shards and its access to their state: opens and closes the files that hold it. Internal to
// engine/.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/host_update.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/slice_store.h"
#include "zero/stage.h"

namespace zerorun {

class StepHashes;

/// The shards that the optimizer updates, which are chunks of `store`, and its access to their state. Used by
/// the engine's thread.
class ShardStates : public StateAccess {
 public:
  /// All arguments must outlive this object; `host_update` may be null.
  ShardStates(SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
              HostUpdate* host_update, StagePolicy policy, const PrecisionConfig& precision,
              Communicator& communicator);

  /// The shards of this rank. Their numbers are their places in this list.
  std::vector<Shard> shards() const;
  /// Memory for a moment of the shard, which lies in the store.
  MomentMemory lend_moment(const Shard& shard, const char* name);

  bool goes_backwards() const override { return backwards_; }
  void plan(std::span<const int> shards) override;
  void open(int shard, ShardUse use) override;
  void close(int shard, ShardUse use) override;
  /// From now on each updated shard of this rank's slices is shown to `hashes`, which must outlive this.
  void show_updates_to(StepHashes& hashes) { hashes_ = &hashes; }
  void start_update() { to_update_ = shards_of_bucket_; }
  /// To be called when the update of a shard has begun. Returns the shard's bucket if that was its last one.
  std::optional<int> note_updated(int shard);
  /// To be called after an update. If state is in files, reverses the order of the shards for the next
  /// update, which then starts with the data that is still in the buffers.
  void finish_update();

 private:
  Shard make_shard(int bucket, int rank, int chunk) const;
  std::vector<RandomRun> random_runs(int bucket, int rank, int chunk) const;
  /// Whether updates change the bucket's values in files, because it has no master weights.
  bool updates_values_in_files(int bucket) const;
  void hold_values(int bucket);

  SliceStore* store_;
  const Buckets* buckets_;
  const GradientReducer* reducer_;
  HostUpdate* host_update_;
  StagePolicy policy_;
  const PrecisionConfig* precision_;
  Communicator* communicator_;
  StepHashes* hashes_ = nullptr;
  std::vector<ChunkOfSlice> chunks_;   // by shard
  std::vector<int> ranks_;             // by shard: whose slice it is a chunk of
  std::vector<int> shards_of_bucket_;  // by bucket: how many shards it has
  std::vector<int> to_update_;         // by bucket: shards that the current update has not updated yet
  std::vector<ChunkOfSlice> planned_;
  int held_ = -1;  // the bucket whose values stay open until its last shard is done; -1: none
  bool backwards_ = false;
};

}  // namespace zerorun
