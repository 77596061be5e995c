#include "zero/gather_memory.h"

#include <algorithm>
#include <utility>

#include "base/memory_report.h"
#include "device/dtypes.h"
#include "device/tensor_run.h"

namespace zerorun {

GatherMemory::GatherMemory(const Buckets& buckets, const SliceStore& store, Communicator& communicator)
    : buckets_(&buckets),
      store_(&store),
      communicator_(&communicator),
      streams_(&communicator.device().streams()),
      places_(store.count()) {
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    if (!buckets.kind(bucket).comes_and_goes()) places_[bucket].memory = buckets.flat(bucket);
    needs_arena_ = needs_arena_ || (buckets.kind(bucket).comes_and_goes() && !buckets.gathers_once(bucket));
  }
}

bool GatherMemory::take_shared(int bucket) {
  if (!buckets_->gathers_once(bucket)) return false;
  places_[bucket].memory = buckets_->shared_gathers()->buffer(bucket);
  count(shared_bytes(bucket));
  return true;
}

bool GatherMemory::take_planned(int bucket, int64_t offset) {
  if (take_shared(bucket)) {
    places_[bucket].planned = true;
    return true;
  }
  const int64_t numel = store_->layout(bucket).numel;
  if (offset + numel > arena_numel()) return false;
  for (int other = 0; other < store_->count(); ++other) {
    // The bucket itself has a place if a gather that was planned there could not be started.
    if (other == bucket || !places_[other].planned || buckets_->gathers_once(other)) continue;
    const int64_t begin = places_[other].memory.storage_offset();
    if (begin < offset + numel && offset < begin + store_->layout(other).numel) return false;
  }
  places_[bucket].memory = run_of(arena_, offset, numel);
  places_[bucket].planned = true;
  return true;
}

void GatherMemory::take_unplanned(int bucket) {
  if (take_shared(bucket)) return;
  at::Tensor& memory = places_[bucket].memory;
  if (communicator_->world_size() == 1 && !buckets_->shard_is_fetched(bucket)) {
    memory = buckets_->shard(bucket);
    return;
  }
  const AllocatingFor use(MemoryUse::gathered, store_->layout(bucket).numel * size_of(buckets_->dtype()));
  StreamScope scope(*streams_, Lane::gather);
  memory = communicator_->device().allocate_on_stream(store_->layout(bucket).numel,
                                                      scalar_type(buckets_->dtype()));
  ++unplanned_allocations_;
  count(static_cast<int64_t>(memory.nbytes()));
}

// Also waits for the streams that last used the bucket in other memory, because their events are about to be
// recorded again.
void GatherMemory::wait_for_last_uses(int bucket) {
  Place& place = places_[bucket];
  const auto size = static_cast<uintptr_t>(place.memory.nbytes());
  const auto begin = reinterpret_cast<uintptr_t>(place.memory.const_data_ptr());
  for (int other = 0; other < store_->count(); ++other) {
    const Place& used = places_[other];
    const auto used_size = static_cast<uintptr_t>(store_->layout(other).numel) * place.memory.element_size();
    const bool apart = used.address >= begin + size || begin >= used.address + used_size;
    if (other != bucket && apart) continue;
    used.users.wait_for_ends(*streams_, streams_->current(), Handover::released);
  }
  place.address = begin;
}

void GatherMemory::give_back(int bucket) {
  Place& place = places_[bucket];
  place.users.record_ends(*streams_);
  const bool planned = std::exchange(place.planned, false);
  if (buckets_->gathers_once(bucket)) {
    count(-shared_bytes(bucket));
  } else if (!planned && !place.memory.is_alias_of(buckets_->shard(bucket))) {
    place.users.for_each([&](StreamId user) { communicator_->device().record_stream(place.memory, user); });
    count(-static_cast<int64_t>(place.memory.nbytes()));
  }
  place.memory.reset();
}

void GatherMemory::make_copy(int bucket) {
  Place& place = places_[bucket];
  const AllocatingFor scope(MemoryUse::gathered, static_cast<int64_t>(place.memory.nbytes()));
  at::Tensor copy = communicator_->device().allocate(place.memory.numel(), place.memory.scalar_type());
  place.memory = copy.copy_(place.memory);
  place.copied = true;
  ++copies_;
  count(static_cast<int64_t>(copy.nbytes()));
}

void GatherMemory::drop_copy(int bucket) {
  Place& place = places_[bucket];
  count(-static_cast<int64_t>(place.memory.nbytes()));
  const bool gathered = buckets_->gathers_once(bucket);
  place.memory = gathered ? buckets_->shared_gathers()->buffer(bucket) : buckets_->flat(bucket);
  place.copied = false;
  --copies_;
}

void GatherMemory::fit_arena(int64_t numel) {
  if (!needs_arena_ || arena_numel() >= numel) return;
  free_arena();
  if (arena_.defined()) return;
  if (!std::exchange(emptied_cache_, true)) communicator_->device().empty_cache();
  const AllocatingFor use(MemoryUse::gathered, numel * size_of(buckets_->dtype()));
  StreamScope scope(*streams_, Lane::gather);
  arena_ = communicator_->allocate(numel, scalar_type(buckets_->dtype()));
  count(static_cast<int64_t>(arena_.nbytes()));
}

void GatherMemory::free_arena() {
  if (!arena_.defined() || std::ranges::any_of(places_, &Place::planned)) return;
  count(-static_cast<int64_t>(arena_.nbytes()));
  arena_.reset();
}

// This rank's share of the bucket's shared buffer, in bytes.
int64_t GatherMemory::shared_bytes(int bucket) const {
  return store_->layout(bucket).slice_numel * size_of(buckets_->dtype());
}

void GatherMemory::count(int64_t bytes) {
  bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

}  // namespace zerorun
