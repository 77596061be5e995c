// The optimizer's access to the state of its shards: opens and closes the files that hold it. Internal to
// engine/.
#pragma once

#include <span>
#include <vector>

#include "engine/host_update.h"
#include "optim/shard_optimizer.h"
#include "zero/slice_store.h"

namespace zerorun {

/// The optimizer's access to the state of its shards, which are chunks of `store`. Used by the engine's
/// thread.
class ShardStates : public StateAccess {
 public:
  /// Both arguments must outlive this object; `host_update` may be null.
  ShardStates(SliceStore& store, HostUpdate* host_update) : store_(&store), host_update_(host_update) {}

  /// Shards are numbered in the order in which they are added.
  void add(int bucket, int chunk) { chunks_.push_back({bucket, chunk}); }

  bool goes_backwards() const override { return backwards_; }
  void plan(std::span<const int> shards) override;
  void open(int shard, ShardUse use) override;
  void close(int shard, ShardUse use) override;
  /// To be called after an update. If state is in files, reverses the order of the shards for the next
  /// update, which then starts with the data that is still in the buffers.
  void finish_update();

 private:
  /// Whether updates change the bucket's values in files, because it has no master weights.
  bool updates_values_in_files(int bucket) const;
  void hold_values(int bucket);

  SliceStore* store_;
  HostUpdate* host_update_;
  std::vector<ChunkOfSlice> chunks_;  // by shard
  std::vector<ChunkOfSlice> planned_;
  int held_ = -1;  // the bucket whose values stay open until its last shard is done; -1: none
  bool backwards_ = false;
};

}  // namespace zerorun
