// What the config's offload_optimizer and offload_param come to for an engine: which state of its slices is
// kept in files, and how the optimizer gets at it. Internal to engine/.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config_types.h"
#include "engine/host_update.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "optim/shard_optimizer.h"
#include "zero/slice_store.h"

namespace zerorun {

/// Throws UserError for what cannot be kept in files, naming it.
void check_offload_options(const Config& config, const InitializeOptions& options);

/// Tells, on rank 0, what is kept where.
void log_offload(const Config& config, const SliceStore& store, const Communicator& communicator);

/// Has `store` keep master weights, moments and values in files, where the config asks for it and the host
/// updates them. `parameters`: of its layout. Throws UserError, on all ranks alike.
void keep_states_in_files(SliceStore& store, const Config& config, const InitializeOptions& options,
                          const BucketOptions& kinds, const std::vector<NamedParameter>& parameters,
                          Communicator& communicator);

/// The optimizer's way to the state of its shards, which are chunks of `store`. Used by the engine's thread.
class ShardStates : public StateAccess {
 public:
  /// Both outlive it; `host_update` may be null.
  ShardStates(SliceStore& store, HostUpdate* host_update) : store_(&store), host_update_(host_update) {}

  /// Shards are numbered as they are added.
  void add(int bucket, int chunk) { chunks_.push_back({bucket, chunk}); }

  bool goes_backwards() const override { return backwards_; }
  void plan(std::span<const int> shards) override;
  void open(int shard, ShardUse use) override;
  void close(int shard, ShardUse use) override;
  /// Behind an update: the next one goes the other way round, where it matters.
  void finish_update();

 private:
  /// Whether what is updated are values, and they are in files.
  bool updates_values_in_files(int bucket) const;
  void hold_values(int bucket);

  SliceStore* store_;
  HostUpdate* host_update_;
  std::vector<ChunkOfSlice> chunks_;  // by shard
  std::vector<ChunkOfSlice> planned_;
  int held_ = -1;  // the bucket whose values stay open for the shards to come: written once for all of them
  bool backwards_ = false;
};

}  // namespace zerorun
