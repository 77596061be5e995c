// The part of Residency that handles changes of parameter values: updates by the optimizer, writes by the
// program's operators, and scopes. Inside a scope the program may also write through raw pointers, which
// Residency cannot observe.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "zero/residency.h"

namespace zerorun {

// Makes the update wait for gathers, because they read the shard. It also waits for users of the gathered
// memory, because that memory may contain the shard. If the host updates the shard, the calling thread waits.
void Residency::start_update(int bucket) {
  std::lock_guard lock(mutex_);
  const StreamId stream = streams_->current();
  BucketState& state = states_[bucket];
  streams_->wait(state.shard_written, stream, Handover::updated);
  streams_->wait(state.gathered, stream, Handover::gathered);
  if (streams_->asynchronous() && buckets_->shard_is_fetched(bucket)) {
    streams_->await(state.shard_written, communicator_->timeout(),
                    "what was written to " + buckets_->label(bucket));
    streams_->await(state.gathered, communicator_->timeout(), "the gather of " + buckets_->label(bucket));
  }
  if (buckets_->gathers_once(bucket)) {
    ZR_CHECK(buckets_->shared_gathers()->is_free(bucket),
             buckets_->label(bucket) + " is in use by some rank");
    buckets_->shared_gathers()->give_back_pages();
  }
  if (memory_.is_copy(bucket)) {
    const at::Tensor written = buckets_->slice(bucket, memory_.of(bucket), communicator_->rank());
    if (state.state == State::dirty) device_->copy(buckets_->shard(bucket), written);
    drop_copy(bucket);
  }
  if (!state.kind.comes_and_goes()) {
    memory_.users(bucket).hand_over(*streams_, stream, Handover::unused);
  } else {
    memory_.users(bucket).wait_for_ends(*streams_, stream, Handover::unused);
  }
}

void Residency::finish_update(int bucket, bool gathers) {
  std::lock_guard lock(mutex_);
  BucketState& state = states_[bucket];
  streams_->record(state.shard_written, streams_->current());
  if (state.kind.comes_and_goes()) return;
  if (gathers) {
    Start start{bucket, "after an update"};
    start_gathers({&start, 1});
  } else {
    streams_->record(state.gathered, streams_->current());
    memory_.users(bucket).clear();
  }
}

void Residency::hold(std::span<const int> buckets) {
  std::lock_guard lock(mutex_);
  finish_writer_queries();
  if (use_observer_) use_observer_->before_gathers();
  std::vector<int> passing;
  for (int bucket : buckets) {
    const BucketState& state = states_[bucket];
    if (!state.kind.comes_and_goes()) continue;
    passing.push_back(bucket);
    // Writes that all ranks made before the scope must reach all slices.
    if (state.kind.copied_for_writes() && state.state == State::dirty && state.pins == 0)
      move(bucket, State::sharded);
  }
  gather_on_demand(passing, "for a GatheredParameters scope");
  for (int bucket : buckets) {
    BucketState& state = states_[bucket];
    if (state.state == State::gathering) move(bucket, State::resident);
    // Writes that all ranks made before the scope must not be lost if the scope is abandoned.
    if (state.kind.comes_and_goes() && state.state == State::dirty && state.pins == 0) {
      write_back(bucket);
      move(bucket, State::resident);
    }
    if (!states_[bucket].kind.copied_for_writes() || memory_.is_copy(bucket)) continue;
    make_copy(bucket);
    states_[bucket].held_clean = true;
  }
  for (int bucket : buckets) {
    // before_write_() is called now, because writes through raw pointers inside the scope cannot be observed.
    if (!states_[bucket].kind.copied_for_writes()) before_write_(bucket);
    pin(bucket);
    join(bucket);
  }
}

void Residency::unhold(std::span<const int> buckets, ScopeEnd end) {
  std::lock_guard lock(mutex_);
  std::vector<int> asked;
  for (int bucket : buckets) {
    if (end == ScopeEnd::written) buckets_->note_written(bucket);
    if (end == ScopeEnd::written && states_[bucket].kind.moves_writes()) move(bucket, State::dirty);
    unpin(bucket);
  }
  for (int bucket : buckets) {
    if (states_[bucket].pins > 0) continue;
    const BucketKind kind = states_[bucket].kind;
    if (end == ScopeEnd::read && kind.around_uses() && kind.copied_for_writes()) {
      asked.push_back(bucket);
    } else {
      end_scope(bucket, end);
    }
  }
  if (!asked.empty()) start_writer_query(std::move(asked));
}

void Residency::end_scope(int bucket, ScopeEnd end) {
  const bool clean_before = std::exchange(states_[bucket].held_clean, false);
  if (states_[bucket].kind.comes_and_goes()) {
    // A rank that has written nothing releases the bucket too, so that all ranks gather it at its next use.
    const bool abandoned = end == ScopeEnd::abandoned;
    if (abandoned && states_[bucket].state == State::dirty) move(bucket, State::resident);
    if (memory_.is_copy(bucket) && states_[bucket].state != State::dirty) drop_copy(bucket);
    if (abandoned || !memory_.planned(bucket)) move(bucket, State::sharded);
    return;
  }
  if (!memory_.is_copy(bucket)) return;
  if (end == ScopeEnd::written) {
    share(bucket);
  } else if (clean_before && (states_[bucket].state != State::dirty || end == ScopeEnd::abandoned)) {
    drop_copy(bucket);
  }
}

void Residency::start_writer_query(std::vector<int> buckets) {
  at::Tensor writers = at::zeros({static_cast<int64_t>(buckets.size())}, at::kLong);
  for (size_t i = 0; i < buckets.size(); ++i) {
    writers.mutable_data_ptr<int64_t>()[i] = states_[buckets[i]].state == State::dirty;
  }
  auto work = communicator_->all_reduce(writers, "who wrote to " + buckets_->label(buckets.front()));
  // A copy is kept only if all ranks have written. So a rank that has not written drops its copy at once,
  // without the result of the all-reduce.
  for (int bucket : buckets) {
    if (states_[bucket].held_clean && states_[bucket].state != State::dirty) end_read(bucket);
  }
  writer_queries_.push_back({std::move(buckets), std::move(writers), std::move(work)});
}

// Writes that only some ranks made are lost. Likewise, writes to other ranks' slices are lost when a gathered
// bucket is released.
void Residency::finish_writer_queries() {
  for (WriterQuery& query : std::exchange(writer_queries_, {})) {
    query.work->wait();
    const auto* writers = query.writers.const_data_ptr<int64_t>();
    for (size_t i = 0; i < query.buckets.size(); ++i) {
      const int bucket = query.buckets[i];
      const bool clean_before = std::exchange(states_[bucket].held_clean, false);
      if (writers[i] == communicator_->world_size()) {
        share(bucket);
      } else if (clean_before && memory_.is_copy(bucket)) {
        end_read(bucket);
      }
    }
  }
}

at::Tensor Residency::start_write(int bucket) {
  std::lock_guard lock(mutex_);
  join(bucket);
  memory_.users(bucket).hand_over(*streams_, streams_->current(), Handover::unused);
  return memory_.of(bucket);
}

void Residency::synchronize() {
  std::lock_guard lock(mutex_);
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
    if (states_[bucket].state != State::sharded) join(bucket);
    const BucketKind kind = states_[bucket].kind;
    if (kind.copied_for_writes() && !kind.around_uses()) open_copy(bucket);
  }
}

void Residency::open_copy(int bucket) {
  make_copy(bucket);
  states_[bucket].open = true;
  give_memory(buckets_->storage(bucket), memory_.of(bucket).mutable_data_ptr());
  move(bucket, State::dirty);  // raw access may write
}

void Residency::make_copy(int bucket) {
  if (memory_.is_copy(bucket)) return;
  memory_.make_copy(bucket);
  ++copies_made_;
  if (states_[bucket].pins == 0) return;
  give_memory(buckets_->storage(bucket), memory_.of(bucket).mutable_data_ptr());
}

void Residency::drop_copy(int bucket) {
  BucketState& state = states_[bucket];
  ZR_CHECK(state.pins == 0, buckets_->label(bucket));
  memory_.drop_copy(bucket);
  --copies_made_;
  state.open = false;
  take_memory(buckets_->storage(bucket));
  if (state.state == State::dirty) move(bucket, State::resident);
}

// Ends the scope on a bucket that this rank only read, or that only some ranks wrote. Drops those
// writes.
void Residency::end_read(int bucket) {
  drop_copy(bucket);
  if (states_[bucket].kind.comes_and_goes() && !memory_.planned(bucket)) move(bucket, State::sharded);
}

// Copies this rank's slice of its private copy to the memory that all ranks read. A collective.
void Residency::share(int bucket) {
  if (states_[bucket].kind.comes_and_goes()) return move(bucket, State::sharded);
  // After the barrier no rank reads the bucket.
  communicator_->barrier("writes to " + buckets_->label(bucket))->wait();
  before_write_(bucket);
  device_->copy(buckets_->shard(bucket), buckets_->slice(bucket, memory_.of(bucket), communicator_->rank()));
  const bool open = states_[bucket].open;
  drop_copy(bucket);
  Start start{bucket, "after a write"};
  start_gathers({&start, 1});
  if (!open) return;
  move(bucket, State::resident);
  open_copy(bucket);
}

// Whether the program has written to the bucket and the other ranks have not received the values yet.
bool Residency::written_before(int bucket) const {
  return memory_.is_copy(bucket) && states_[bucket].state == State::dirty;
}

// A collective: all ranks have the same writes and uses of partitioned parameters, so all of them call this.
void Residency::share_writes() {
  finish_writer_queries();
  for (int bucket : staying_) {
    const BucketState& state = states_[bucket];
    if (state.kind.around_uses() && state.pins == 0 && written_before(bucket)) share(bucket);
  }
}

// Copies this rank's slice of the gathered values, to which the program has written, to its shard.
void Residency::write_back(int bucket) {
  const at::Tensor& shard = buckets_->shard(bucket);
  const at::Tensor& memory = memory_.of(bucket);
  if (shard.is_alias_of(memory)) return;
  if (buckets_->gathers_once(bucket))  // after the barrier no rank reads the buffer
    communicator_->barrier("writes to " + buckets_->label(bucket))->wait();
  join(bucket);
  memory_.users(bucket).hand_over(*streams_, streams_->current(), Handover::unused);
  before_write_(bucket);
  copy_shard(bucket, ValueUse::overwrite, shard, buckets_->slice(bucket, memory, communicator_->rank()));
  streams_->record(states_[bucket].shard_written, streams_->current());
}

// Copies on the current stream. If the shard is in files, waits for the copy, since the shard's buffer may be
// reused as soon as this returns.
void Residency::copy_shard(int bucket, ValueUse use, const at::Tensor& to, const at::Tensor& from) {
  buckets_->with_shard(bucket, use, [&] {
    device_->copy(to, from);
    if (!streams_->asynchronous() || !buckets_->shard_in_files(bucket)) return;
    streams_->record(shard_copied_, streams_->current());
    streams_->await(shard_copied_, communicator_->timeout(), "the slice of " + buckets_->label(bucket));
  });
}

}  // namespace zerorun
