#include "zero/shared_writes.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace zerorun {

using State = GatheredBuckets::State;

SharedWrites::SharedWrites(GatheredBuckets& gathered, const Buckets& buckets, const SliceStore& store,
                           Communicator& communicator)
    : gathered_(&gathered),
      buckets_(&buckets),
      store_(&store),
      communicator_(&communicator),
      copied_for_scope_(store.count()) {}

// Whether the program has written to the bucket and the other ranks have not received the values yet.
bool SharedWrites::written_before(int bucket) const {
  return gathered_->memory().is_copy(bucket) && gathered_->state(bucket) == State::dirty;
}

void SharedWrites::share_all() {
  finish_queries();
  for (int bucket : gathered_->permanent()) {
    const bool is_partitioned = gathered_->kind(bucket).around_uses();
    if (is_partitioned && gathered_->pins(bucket) == 0 && written_before(bucket)) share(bucket);
  }
}

// Copies this rank's slice of its private copy to the memory that all ranks read. A collective.
void SharedWrites::share(int bucket) {
  if (gathered_->kind(bucket).comes_and_goes()) return gathered_->move(bucket, State::sharded);
  // After the barrier no rank reads the bucket.
  communicator_->barrier("writes to " + buckets_->label(bucket))->wait();
  gathered_->before_write(bucket);
  const at::Tensor& copy = gathered_->memory().of(bucket);
  communicator_->device().copy(buckets_->shard(bucket),
                               store_->slice_of(bucket, copy, communicator_->rank()));
  const bool was_open = gathered_->copy_is_open(bucket);
  gathered_->drop_copy(bucket);
  GatheredBuckets::Start start{bucket, "after a write"};
  gathered_->start_gathers({&start, 1});
  if (!was_open) return;
  gathered_->move(bucket, State::resident);
  gathered_->open_copy(bucket);
}

void SharedWrites::copy_for_scope(int bucket) {
  if (!gathered_->kind(bucket).copied_for_writes() || gathered_->memory().is_copy(bucket)) return;
  gathered_->make_copy(bucket);
  copied_for_scope_[bucket] = true;
}

void SharedWrites::end_scope(std::span<const int> buckets, ScopeEnd end) {
  std::vector<int> asked;
  for (int bucket : buckets) {
    const BucketKind kind = gathered_->kind(bucket);
    if (end == ScopeEnd::read && kind.around_uses() && kind.copied_for_writes()) {
      asked.push_back(bucket);
    } else {
      end_on(bucket, end);
    }
  }
  if (!asked.empty()) start_query(std::move(asked));
}

void SharedWrites::end_on(int bucket, ScopeEnd end) {
  const GatherMemory& memory = gathered_->memory();
  const bool clean_before = copied_for_scope_[bucket];
  const bool abandoned = end == ScopeEnd::abandoned;
  copied_for_scope_[bucket] = false;
  if (gathered_->kind(bucket).comes_and_goes()) {
    // A rank that has written nothing releases the bucket too, so that all ranks gather it at its next use.
    if (abandoned && gathered_->state(bucket) == State::dirty) gathered_->move(bucket, State::resident);
    if (memory.is_copy(bucket) && gathered_->state(bucket) != State::dirty) gathered_->drop_copy(bucket);
    if (abandoned || !memory.planned(bucket)) gathered_->move(bucket, State::sharded);
    return;
  }
  if (!memory.is_copy(bucket)) return;
  if (end == ScopeEnd::written) {
    share(bucket);
  } else if (clean_before && (gathered_->state(bucket) != State::dirty || abandoned)) {
    gathered_->drop_copy(bucket);
  }
}

void SharedWrites::start_query(std::vector<int> buckets) {
  at::Tensor writers = at::zeros({static_cast<int64_t>(buckets.size())}, at::kLong);
  for (size_t i = 0; i < buckets.size(); ++i) {
    writers.mutable_data_ptr<int64_t>()[i] = gathered_->state(buckets[i]) == State::dirty;
  }
  auto work = communicator_->all_reduce(writers, "who wrote to " + buckets_->label(buckets.front()));
  // A copy is kept only if all ranks have written. So a rank that has not written drops its copy at once,
  // without the result of the all-reduce.
  for (int bucket : buckets) {
    if (copied_for_scope_[bucket] && gathered_->state(bucket) != State::dirty) end_read(bucket);
  }
  queries_.push_back({std::move(buckets), std::move(writers), std::move(work)});
}

// Writes that only some ranks made are lost. Likewise, writes to other ranks' slices are lost when a gathered
// bucket is released.
void SharedWrites::finish_queries() {
  for (WriterQuery& query : std::exchange(queries_, {})) {
    query.work->wait();
    const auto* writers = query.writers.const_data_ptr<int64_t>();
    for (size_t i = 0; i < query.buckets.size(); ++i) {
      const int bucket = query.buckets[i];
      const bool clean_before = copied_for_scope_[bucket];
      copied_for_scope_[bucket] = false;
      if (writers[i] == communicator_->world_size()) {
        share(bucket);
      } else if (clean_before && gathered_->memory().is_copy(bucket)) {
        end_read(bucket);
      }
    }
  }
}

// Ends the scope on a bucket that this rank only read, or that only some ranks wrote. Drops those writes.
void SharedWrites::end_read(int bucket) {
  gathered_->drop_copy(bucket);
  const bool is_temporary = gathered_->kind(bucket).comes_and_goes();
  if (is_temporary && !gathered_->memory().planned(bucket)) gathered_->move(bucket, State::sharded);
}

}  // namespace zerorun
