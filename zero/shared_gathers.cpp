#include "zero/shared_gathers.h"

namespace zerorun {

SharedGathers::SharedGathers(int buckets, Communicator& communicator)
    : communicator_(&communicator),
      released_(communicator.allocate_shared(int64_t{buckets} * communicator.world_size(), at::kLong)),
      buckets_(buckets) {}

const at::Tensor& SharedGathers::make_buffer(int bucket, int64_t numel, at::ScalarType dtype) {
  if (released_.defined()) buckets_[bucket].buffer = communicator_->allocate_shared(numel, dtype);
  buckets_[bucket].has_pages = true;  // the caller is about to write to it
  return buckets_[bucket].buffer;
}

bool SharedGathers::start(int bucket) {
  const bool free = is_free(bucket);
  ++buckets_[bucket].started;
  buckets_[bucket].has_pages = true;
  return free;
}

void SharedGathers::release(int bucket) {
  if (!home_.is_current()) return;
  const bool is_plan = communicator_->device().location().is_meta();  // whose other ranks do as this one
  for (int rank = 0; rank < communicator_->world_size(); ++rank) {
    if (rank != communicator_->rank() && !is_plan) continue;
    last_released(bucket, rank).store(buckets_[bucket].started, std::memory_order_release);
  }
}

void SharedGathers::give_back_pages() {
  if (!home_.is_current()) return;
  for (int bucket = 0; bucket < static_cast<int>(buckets_.size()); ++bucket) {
    Bucket& of = buckets_[bucket];
    if (!of.has_pages || !of.buffer.defined() || !is_free(bucket)) continue;
    const int64_t slice = of.buffer.numel() / communicator_->world_size();
    communicator_->give_back_pages(of.buffer.narrow(0, communicator_->rank() * slice, slice));
    of.has_pages = false;
  }
}

bool SharedGathers::is_free(int bucket) const {
  for (int rank = 0; rank < communicator_->world_size(); ++rank) {
    const int64_t last = last_released(bucket, rank).load(std::memory_order_acquire);
    if (last != buckets_[bucket].started) return false;
  }
  return true;
}

std::atomic_ref<int64_t> SharedGathers::last_released(int bucket, int rank) const {
  const int64_t index = int64_t{bucket} * communicator_->world_size() + rank;
  return std::atomic_ref<int64_t>(released_.mutable_data_ptr<int64_t>()[index]);
}

}  // namespace zerorun
