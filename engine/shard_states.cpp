#include "engine/shard_states.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/fnv1a.h"
#include "base/memory_report.h"
#include "device/dtypes.h"
#include "device/moment_codes.h"
#include "engine/memory_check.h"
#include "engine/step_hashes.h"

namespace zerorun {

// Each rank updates slice by slice, also at stage 0, where it updates all slices. So all stages make the same
// kernel calls, which give the same bits.
ShardStates::ShardStates(SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
                         HostUpdate* host_update, StagePolicy policy, const PrecisionConfig& precision,
                         Communicator& communicator)
    : store_(&store),
      buckets_(&buckets),
      reducer_(&reducer),
      host_update_(host_update),
      policy_(policy),
      precision_(&precision),
      communicator_(&communicator),
      shards_of_bucket_(static_cast<size_t>(buckets.trained_count())) {
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    for (int rank = 0; rank < communicator.world_size(); ++rank) {
      if (!policy.replicate_update && rank != communicator.rank()) continue;
      for (int chunk = 0; chunk < store.chunks(bucket); ++chunk) {
        chunks_.push_back({bucket, chunk});
        ranks_.push_back(rank);
        ++shards_of_bucket_[bucket];
      }
    }
  }
}

std::vector<Shard> ShardStates::shards() const {
  std::vector<Shard> shards;
  for (size_t shard = 0; shard < chunks_.size(); ++shard)
    shards.push_back(make_shard(chunks_[shard].bucket, ranks_[shard], chunks_[shard].chunk));
  return shards;
}

Shard ShardStates::make_shard(int bucket, int rank, int chunk) const {
  const auto [begin, numel] = store_->chunk_range(bucket, chunk);
  auto part_of = [&, begin = begin, numel = numel](const char* name) {
    const StateTensor& state = store_->at(bucket, name);
    return state.extent == Extent::slice ? store_->chunk(bucket, state, chunk)
                                         : store_->slice(bucket, name, rank).narrow(0, begin, numel);
  };
  const bool has_master = buckets_->masters().has(bucket);
  at::Tensor gradient, rounded;
  if (host_update_) {
    gradient = reducer_->on_host(bucket).narrow(0, begin, numel);
    if (buckets_->masters().are_rounded()) rounded = host_update_->values(bucket).narrow(0, begin, numel);
  } else {
    gradient = part_of(kGradient);
    if (has_master) rounded = part_of(kValue);
  }
  return {.values = part_of(has_master ? kMaster : kValue),
          .gradient = std::move(gradient),
          .rounded = std::move(rounded),
          .group = store_->layout(bucket).group,
          .bucket = bucket,
          .rank = rank,
          .begin = begin,
          .runs = precision_->rounding_seed ? random_runs(bucket, rank, chunk) : std::vector<RandomRun>()};
}

// The random numbers follow the parameter's name: its number and place differ between stages and meshes, and
// between pipeline stages that share it.
std::vector<RandomRun> ShardStates::random_runs(int bucket, int rank, int chunk) const {
  const Range of_chunk = store_->chunk_range(bucket, chunk);
  std::vector<RandomRun> runs;
  for (const int parameter : store_->layout(bucket).parameters) {
    const auto [begin, numel] = overlap(store_->range_in_slice(parameter, rank), of_chunk);
    if (numel == 0) continue;
    const auto seed = static_cast<uint64_t>(*precision_->rounding_seed);
    runs.push_back({.begin = begin - of_chunk.begin,
                    .numel = numel,
                    .key = mixed(fnv1a(mixed(seed), buckets_->parameters()[parameter].name)),
                    .first = store_->index_in_parameter(parameter, rank, begin)});
  }
  return runs;
}

// A moment covers what this rank updates: its slice, or the whole bucket.
MomentMemory ShardStates::lend_moment(const Shard& shard, const char* name) {
  if (!store_->has(shard.bucket, name)) {
    const BucketLayout& layout = store_->layout(shard.bucket);
    const Extent extent = policy_.replicate_update ? Extent::bucket : Extent::slice;
    const int64_t numel = policy_.replicate_update ? layout.numel : layout.slice_numel;
    Device& device = communicator_->device();
    const AllocatingFor scope(host_update_ ? MemoryUse::on_host : MemoryUse::moments,
                              moment_bytes(*precision_, numel));
    const auto allocated = [&](int64_t count, at::ScalarType dtype) {
      if (device.location().is_meta()) return at::empty({count}, at::dtype(dtype).device(at::kMeta));
      return host_update_ ? device.allocate_on_host(count, dtype) : device.allocate(count, dtype);
    };
    const bool is_coded = precision_->moments_in_8_bits;
    at::Tensor memory = allocated(numel, is_coded ? at::kByte : scalar_type(precision_->moments));
    at::Tensor scales = is_coded ? allocated(coded_blocks(numel), at::kFloat) : at::Tensor();
    store_->put(shard.bucket, StateKind::moment, name, extent, std::move(memory),
                host_update_ ? Home::host : Home::device, std::move(scales));
  }
  const StateTensor& state = store_->at(shard.bucket, name);
  if (state.home != Home::file)
    return {store_->slice(shard.bucket, name, shard.rank), store_->scales(shard.bucket, name, shard.rank)};
  int chunk = 0;
  while (store_->chunk_range(shard.bucket, chunk).begin != shard.begin) ++chunk;
  return state.chunks[chunk];
}

std::optional<int> ShardStates::note_updated(int shard) {
  const int bucket = chunks_[shard].bucket;
  return --to_update_[bucket] == 0 ? std::optional(bucket) : std::nullopt;
}

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
  if (hashes_ && use == ShardUse::update) hashes_->look_at(make_shard(bucket, ranks_[shard], chunk));
}

void ShardStates::close(int shard, ShardUse use) {
  const auto [bucket, chunk] = chunks_[shard];
  if (use == ShardUse::moments && updates_values_in_files(bucket))
    store_->close_values(bucket, ValueUse::read);
  if (host_update_ && use == ShardUse::update && store_->has(bucket, kMaster)) {
    host_update_->copy_master(bucket, store_->chunk_range(bucket, chunk).begin,
                              store_->chunk(bucket, store_->at(bucket, kMaster), chunk));
  }
  if (hashes_ && use == ShardUse::update) hashes_->add_values(make_shard(bucket, ranks_[shard], chunk));
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
