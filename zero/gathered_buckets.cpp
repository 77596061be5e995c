#include "zero/gathered_buckets.h"

#include <chrono>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

// A gather is counted as ready if the wait for it is shorter than this. Only the report uses this number.
constexpr std::chrono::microseconds kReady(50);

}  // namespace

GatheredBuckets::GatheredBuckets(Buckets& buckets, SliceStore& store, Communicator& communicator,
                                 const GatherWays& ways)
    : buckets_(&buckets),
      store_(&store),
      communicator_(&communicator),
      device_(&communicator.device()),
      streams_(&communicator.device().streams()),
      states_(store.count()),
      memory_(buckets, store, communicator),
      near_(buckets, store, ways.near),
      quantized_(ways.quantized, store.count(), communicator) {
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    streams_->record(states_[bucket].shard_written, streams_->current());
    states_[bucket].kind = buckets.kind(bucket);
    if (states_[bucket].kind.comes_and_goes()) {
      temporary_.push_back(bucket);
    } else {
      permanent_.push_back(bucket);
      states_[bucket].state = State::resident;
    }
  }
}

void GatheredBuckets::leave() {
  for (int bucket : permanent_) {
    if (states_[bucket].kind.around_uses()) continue;
    try {
      // Waiting for each bucket until its deadline could take hours.
      if (report_.lost_ranks && states_[bucket].state == State::gathering)
        throw CommError("a gather before it has lost ranks");
      finish_gather(bucket);
      streams_->await(states_[bucket].gathered, communicator_->timeout(), buckets_->label(bucket));
      if (memory_.is_copy(bucket)) buckets_->set_values_after_engine(bucket, memory_.of(bucket));
    } catch (const std::exception& error) {
      buckets_->mark_incomplete(bucket);
      log_warning("the last update of " + buckets_->label(bucket) +
                  " did not arrive on this rank: " + error.what());
    }
  }
  for (BucketState& state : states_) state.work.reset();  // before the gathers' memory is freed
}

ResidencyReport GatheredBuckets::report() const {
  ResidencyReport report = report_;
  report.unplanned_allocations = memory_.unplanned_allocations();
  report.resident_bytes = memory_.bytes() + near_.bytes();
  report.peak_resident_bytes = memory_.peak_bytes() + near_.bytes();
  return report;
}

void GatheredBuckets::give_memory_to_parameters(int bucket) {
  buckets_->give_memory(bucket, memory_.of(bucket).mutable_data_ptr());
}

void GatheredBuckets::pin(int bucket) {
  if (states_[bucket].pins++ == 0 && guarded(bucket)) give_memory_to_parameters(bucket);
}

void GatheredBuckets::unpin(int bucket) {
  if (--states_[bucket].pins == 0 && guarded(bucket)) buckets_->take_memory(bucket);
}

const char* GatheredBuckets::name_of(State state) {
  switch (state) {
    case State::sharded:
      return "sharded";
    case State::gathering:
      return "gathering";
    case State::resident:
      return "resident";
    case State::dirty:
      return "dirty";
  }
  return "";
}

bool GatheredBuckets::may_move(int bucket, State to) const {
  const BucketState& state = states_[bucket];
  const BucketKind kind = state.kind;
  const State from = state.state;
  switch (to) {
    case State::gathering:
      return from == (kind.comes_and_goes() ? State::sharded : State::resident) && !memory_.is_copy(bucket);
    case State::resident:
      return from == State::gathering || from == State::dirty;
    case State::dirty:
      return (from == State::resident || from == State::dirty) &&
             (kind.comes_and_goes() || memory_.is_copy(bucket));
    case State::sharded:
      return kind.comes_and_goes() && from != State::sharded && state.pins == 0;
  }
  return false;
}

void GatheredBuckets::move(int bucket, State to, std::string reason) {
  BucketState& state = states_[bucket];
  ZR_CHECK(may_move(bucket, to), buckets_->label(bucket) + " may not go from " + name_of(state.state) +
                                     " to " + name_of(to) + ", pinned by " + std::to_string(state.pins));
  const bool is_temporary = state.kind.comes_and_goes();
  switch (to) {
    case State::gathering:
      if (!is_temporary) buckets_->take_memory(bucket);
      streams_->wait(state.shard_written, streams_->current(), Handover::updated);
      if (streams_->asynchronous()) memory_.wait_for_last_uses(bucket);
      state.work = gather(bucket, std::move(reason));
      if (is_temporary) live_numel_ += store_->layout(bucket).numel;
      ++report_.gathers;
      break;
    case State::resident:
      if (state.state != State::gathering) break;
      await_gather(bucket);
      if (!guarded(bucket)) give_memory_to_parameters(bucket);
      break;
    case State::dirty:
      break;
    case State::sharded:
      if (state.state == State::gathering) await_gather(bucket);
      release(bucket);
      break;
  }
  state.state = to;
}

template <typename Collective>
auto GatheredBuckets::noting_lost_ranks(const Collective& collective) -> decltype(collective()) {
  try {
    return collective();
  } catch (const CommError&) {
    report_.lost_ranks = true;
    throw;
  }
}

// Starts the all-gather, inside the group of near copies if they have the values. If the shard is in a file
// or in host memory, first copies it into the memory of the gathered bucket.
std::unique_ptr<Work> GatheredBuckets::gather(int bucket, std::string reason) {
  const at::Tensor& memory = memory_.of(bucket);
  std::string label = "parameters of " + buckets_->label(bucket);
  BucketState& state = states_[bucket];
  state.is_far = !is_near(bucket, state.exactly);
  if (!state.is_far) {
    state.is_rounded = near_.is_rounded(bucket);
    return noting_lost_ranks(
        [&] { return near_.gather(bucket, memory, "second copies of " + label, std::move(reason)); });
  }
  at::Tensor own = buckets_->shard(bucket);
  if (buckets_->shard_is_fetched(bucket)) {
    own = store_->slice_of(bucket, memory, communicator_->rank());
    if (buckets_->gathers_once(bucket) && !buckets_->shared_gathers()->start(bucket)) {
      // The slice is still in the buffer and need not be copied. It is opened only because the planned reads
      // include it.
      store_->with_values(bucket, ValueUse::read, [] {});
    } else {
      copy_shard(bucket, ValueUse::read, own, buckets_->shard(bucket));
    }
  }
  state.is_rounded = quantized_.enabled() && !state.exactly && state.kind == BucketKind::partitioned;
  return noting_lost_ranks([&] {
    return state.is_rounded ? quantized_.gather(bucket, own, std::move(label), std::move(reason))
                            : communicator_->all_gather(memory, own, std::move(label), std::move(reason));
  });
}

void GatheredBuckets::start_gathers(std::span<Start> starts) {
  if (starts.empty()) return;
  const TimelineSpan span(TimelineName::start_gathers, static_cast<int32_t>(starts.size()));
  StreamScope scope(*streams_, Lane::gather);
  start_all(starts, /*is_far=*/true);
  if (near_.group()) start_all(starts, /*is_far=*/false);
  for (const Start& start : starts) {
    // In the order of the stream, after the gather. Without streams await_gather() does it.
    if (streams_->asynchronous()) take_gathered(start.bucket);
    streams_->record(states_[start.bucket].gathered, streams_->current());
    memory_.users(start.bucket).clear();
  }
}

void GatheredBuckets::start_all(std::span<Start> starts, bool is_far) {
  const auto start = [&] {
    for (Start& one : starts) {
      if (is_near(one.bucket, one.exactly) == is_far) continue;
      states_[one.bucket].exactly = one.exactly;
      move(one.bucket, State::gathering, std::move(one.reason));
    }
  };
  if (starts.size() > 1) {
    (is_far ? communicator_ : near_.group())->as_one(start);
  } else {
    start();
  }
}

void GatheredBuckets::take_gathered(int bucket) {
  const BucketState& state = states_[bucket];
  if (!state.is_far) return;
  if (state.is_rounded) quantized_.decode(bucket, memory_.of(bucket));
  near_.keep(bucket, memory_.of(bucket), state.is_rounded);
}

void GatheredBuckets::release(int bucket) {
  const bool once = buckets_->gathers_once(bucket);
  if (once) buckets_->shared_gathers()->release(bucket);
  if (states_[bucket].state == State::dirty) write_back(bucket);
  if (memory_.is_copy(bucket)) drop_copy(bucket);
  memory_.give_back(bucket);
  if (once) buckets_->shared_gathers()->give_back_pages();
  ++releases_;
  live_numel_ -= store_->layout(bucket).numel;
}

void GatheredBuckets::join(int bucket) {
  const StreamId stream = streams_->current();
  StreamUsers& users = memory_.users(bucket);
  if (users.has(stream)) return;
  streams_->wait(states_[bucket].gathered, stream, Handover::gathered);
  users.add(stream);
}

void GatheredBuckets::await_gather(int bucket) {
  auto work = std::move(states_[bucket].work);
  if (!work) throw CommError("the all-gather of " + buckets_->label(bucket) + " has failed before");
  const TimelineSpan span(TimelineName::wait_for_gather, bucket);
  const auto begin = Clock::now();
  noting_lost_ranks([&] { work->wait(); });
  if (!streams_->asynchronous()) take_gathered(bucket);
  const auto waited = Clock::now() - begin;
  ++(waited < kReady ? report_.ready : report_.waited);
  report_.waited_ms += std::chrono::duration<double, std::milli>(waited).count();
}

void GatheredBuckets::make_copy(int bucket) {
  if (memory_.is_copy(bucket)) return;
  memory_.make_copy(bucket);
  if (states_[bucket].pins > 0) give_memory_to_parameters(bucket);
}

void GatheredBuckets::open_copy(int bucket) {
  make_copy(bucket);
  states_[bucket].copy_is_open = true;
  give_memory_to_parameters(bucket);
  move(bucket, State::dirty);  // raw access may write
}

void GatheredBuckets::drop_copy(int bucket) {
  BucketState& state = states_[bucket];
  ZR_CHECK(state.pins == 0, buckets_->label(bucket));
  memory_.drop_copy(bucket);
  state.copy_is_open = false;
  buckets_->take_memory(bucket);
  if (state.state == State::dirty) move(bucket, State::resident);
}

void GatheredBuckets::write_back(int bucket) {
  const at::Tensor& shard = buckets_->shard(bucket);
  const at::Tensor& memory = memory_.of(bucket);
  if (shard.is_alias_of(memory)) return;
  if (buckets_->gathers_once(bucket))  // after the barrier no rank reads the buffer
    communicator_->barrier("writes to " + buckets_->label(bucket))->wait();
  join(bucket);
  memory_.users(bucket).hand_over(*streams_, streams_->current(), Handover::unused);
  before_write_(bucket);
  near_.drop(bucket);
  copy_shard(bucket, ValueUse::overwrite, shard, store_->slice_of(bucket, memory, communicator_->rank()));
  streams_->record(states_[bucket].shard_written, streams_->current());
}

// Copies on the current stream. If the shard is in files, waits for the copy, since the shard's buffer may be
// reused as soon as this returns.
void GatheredBuckets::copy_shard(int bucket, ValueUse use, const at::Tensor& to, const at::Tensor& from) {
  store_->with_values(bucket, use, [&] {
    device_->copy(to, from);
    if (!streams_->asynchronous() || !store_->has_values_in_files(bucket)) return;
    streams_->record(shard_copied_, streams_->current());
    streams_->await(shard_copied_, communicator_->timeout(), "the slice of " + buckets_->label(bucket));
  });
}

// Makes the update wait for gathers, because they read the shard. It also waits for users of the gathered
// memory, because that memory may contain the shard. If the host updates the shard, the calling thread waits.
void GatheredBuckets::start_update(int bucket) {
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
    const at::Tensor written = store_->slice_of(bucket, memory_.of(bucket), communicator_->rank());
    if (state.state == State::dirty) device_->copy(buckets_->shard(bucket), written);
    drop_copy(bucket);
  }
  if (!state.kind.comes_and_goes()) {
    memory_.users(bucket).hand_over(*streams_, stream, Handover::unused);
  } else {
    memory_.users(bucket).wait_for_ends(*streams_, stream, Handover::unused);
  }
}

void GatheredBuckets::finish_update(int bucket, bool gathers) {
  BucketState& state = states_[bucket];
  near_.drop(bucket);
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

}  // namespace zerorun
