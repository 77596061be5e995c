#include "engine/shard_states.h"

#include <algorithm>
#include <utility>

namespace zerorun {

void ShardStates::plan(std::span<const int> shards) {
  planned_.clear();
  for (const int shard : shards) planned_.push_back(chunks_[shard]);
  if (store_->files()) store_->files()->plan(planned_);
  if (!store_->value_files()) return;
  // Consecutive shards of a bucket share one read of its values. Buckets whose values the update does not
  // read are left out.
  for (ChunkOfSlice& chunk : planned_) chunk.chunk = 0;
  const auto same = [](const ChunkOfSlice& a, const ChunkOfSlice& b) { return a.bucket == b.bucket; };
  planned_.erase(std::unique(planned_.begin(), planned_.end(), same), planned_.end());
  std::erase_if(planned_, [&](const ChunkOfSlice& chunk) { return !updates_values_in_files(chunk.bucket); });
  store_->value_files()->plan(planned_);
}

bool ShardStates::updates_values_in_files(int bucket) const {
  return store_->has_values_in_files(bucket) && !store_->has(bucket, kMaster);
}

void ShardStates::open(int shard, ShardUse use) {
  const auto [bucket, chunk] = chunks_[shard];
  store_->open_chunk(bucket, chunk);
  if (use == ShardUse::update) {
    hold_values(bucket);
  } else if (updates_values_in_files(bucket)) {
    store_->open_values(bucket, ValueUse::read);
  }
}

void ShardStates::close(int shard, ShardUse use) {
  const auto [bucket, chunk] = chunks_[shard];
  if (use == ShardUse::moments && updates_values_in_files(bucket))
    store_->close_values(bucket, ValueUse::read);
  if (host_update_ && use == ShardUse::update && store_->has(bucket, kMaster)) {
    host_update_->copy_master(bucket, store_->chunk_range(bucket, chunk).begin,
                              store_->chunk(bucket, store_->at(bucket, kMaster), chunk));
  }
  store_->close_chunk(bucket, chunk, /*changed=*/true);
}

// 16-bit values need not be read: an update overwrites all of them with the rounded master weights.
void ShardStates::hold_values(int bucket) {
  auto use_of = [&](int held) {
    return updates_values_in_files(held) ? ValueUse::change : ValueUse::overwrite;
  };
  if (held_ == bucket) return;
  const int before = std::exchange(held_, -1);
  if (before >= 0) store_->close_values(before, use_of(before));
  if (bucket < 0) return;
  store_->open_values(bucket, use_of(bucket));
  held_ = bucket;
}

void ShardStates::finish_update() {
  hold_values(-1);
  backwards_ = !backwards_ && store_->files();
}

}  // namespace zerorun
