#include "zero/residency.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/dtypes.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

// A wait shorter than this found its gather ready: for the report only, no decision depends on it.
constexpr std::chrono::microseconds kReady(50);

}  // namespace

Residency::Residency(Buckets& buckets, Communicator& communicator, GatherLimits limits,
                     std::function<bool()> in_training)
    : buckets_(&buckets),
      communicator_(&communicator),
      device_(&communicator.device()),
      streams_(&communicator.device().streams()),
      limits_(limits),
      to_copy_(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "")),
      in_training_(std::move(in_training)),
      states_(buckets.count()) {
  for (int bucket = 0; bucket < buckets.count(); ++bucket) {
    bucket_numel_.push_back(buckets.layout(bucket).numel);
    streams_->record(states_[bucket].shard_written, streams_->current());
    if (buckets.partitioned(bucket)) {
      partitioned_numel_ += bucket_numel_.back();
    } else {
      states_[bucket].state = State::resident;
      states_[bucket].memory = buckets.flat(bucket);
    }
  }
  buckets.listen(this);
}

// Whole buckets stay with the model, so their values must arrive.
Residency::~Residency() {
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    if (buckets_->partitioned(bucket)) continue;
    try {
      if (states_[bucket].state == State::gathering) move(bucket, State::resident);
      streams_->await(states_[bucket].gathered, communicator_->timeout(), buckets_->label(bucket));
    } catch (const std::exception& error) {
      buckets_->give_up(bucket);
      log_warning("the last update of " + buckets_->label(bucket) +
                  " did not arrive on this rank: " + error.what());
    }
  }
  for (BucketState& state : states_) state.work.reset();  // before the memory they write to
}

void Residency::enter(const c10::OperatorHandle& op, std::span<const Touched> touched) {
  std::lock_guard lock(mutex_);
  c10::SmallVector<int, 6> partitioned;
  bool pinned = true;  // by an operator that this one is a part of, or by a scope: no use of its own
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    if (!buckets_->partitioned(bucket)) continue;
    partitioned.push_back(bucket);
    pinned = pinned && states_[bucket].pins > 0;
  }
  if (!pinned) {
    std::sort(partitioned.begin(), partitioned.end());
    if (!std::ranges::equal(partitioned, current_)) note_use({op, touched}, partitioned);
    watch_copies({op, touched});
  }
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
  }
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    pin(bucket);
    join(bucket);
    streams_->note_use(states_[bucket].memory, item.written);
    if (!item.written) continue;
    buckets_->note_written(bucket);
    if (buckets_->partitioned(bucket)) move(bucket, State::dirty);
  }
}

void Residency::leave(std::span<const Touched> touched) noexcept {
  std::lock_guard lock(mutex_);
  for (const Touched& item : touched) unpin(buckets_->bucket_of(item.owner));
}

void Residency::pin(int bucket) {
  BucketState& state = states_[bucket];
  if (state.pins++ == 0 && buckets_->partitioned(bucket)) {
    give_memory(buckets_->storage(bucket), state.memory.mutable_data_ptr());
  }
}

void Residency::unpin(int bucket) {
  if (--states_[bucket].pins == 0 && buckets_->partitioned(bucket)) take_memory(buckets_->storage(bucket));
}

void Residency::move(int bucket, State to, std::string reason) {
  BucketState& state = states_[bucket];
  const bool partitioned = buckets_->partitioned(bucket);
  switch (to) {
    case State::gathering:
      ZR_CHECK(state.state == (partitioned ? State::sharded : State::resident), buckets_->label(bucket));
      if (!partitioned) take_memory(buckets_->storage(bucket));
      streams_->wait(state.shard_written, streams_->current(), Handover::updated);
      if (streams_->asynchronous()) wait_for_place(bucket);
      state.work = communicator_->all_gather(state.memory, buckets_->shard(bucket),
                                             "parameters of " + buckets_->label(bucket), std::move(reason));
      if (partitioned) live_numel_ += bucket_numel_[bucket];
      ++report_.gathers;
      break;
    case State::resident:
      ZR_CHECK(state.state == State::gathering, buckets_->label(bucket));
      finish_gather(bucket);
      if (!partitioned) give_memory(buckets_->storage(bucket), state.memory.mutable_data_ptr());
      break;
    case State::dirty:
      ZR_CHECK(partitioned && (state.state == State::resident || state.state == State::dirty),
               buckets_->label(bucket));
      break;
    case State::sharded:
      ZR_CHECK(partitioned && state.state != State::sharded && state.pins == 0, buckets_->label(bucket));
      if (state.state == State::gathering) finish_gather(bucket);
      release(bucket);
      break;
  }
  state.state = to;
}

// On the gathers' stream, behind the last update of the shards and the last uses of the places.
void Residency::start_gathers(std::span<Start> starts) {
  if (starts.empty()) return;
  StreamScope scope(*streams_, Lane::gather);
  auto start_all = [&] {
    for (Start& start : starts) move(start.bucket, State::gathering, std::move(start.reason));
  };
  if (starts.size() > 1) {
    communicator_->together(start_all);
  } else {
    start_all();
  }
  for (const Start& start : starts) {
    BucketState& state = states_[start.bucket];
    streams_->record(state.gathered, streams_->current());
    state.users.clear();
  }
}

// Whoever has used what lay where the bucket comes. Its own last uses as well, wherever they were: their
// events are about to be used again.
void Residency::wait_for_place(int bucket) {
  BucketState& state = states_[bucket];
  const auto size = static_cast<uintptr_t>(state.memory.nbytes());
  const auto begin = reinterpret_cast<uintptr_t>(state.memory.const_data_ptr());
  for (int other = 0; other < buckets_->count(); ++other) {
    const BucketState& used = states_[other];
    const uintptr_t end =
        used.place + static_cast<uintptr_t>(bucket_numel_[other]) * state.memory.element_size();
    if (other != bucket && (used.place >= begin + size || begin >= end)) continue;
    used.users.wait_for_ends(*streams_, streams_->current(), Handover::released);
  }
  state.place = begin;
}

// The memory is free for others as soon as its users have ended, which the next gather there waits for.
void Residency::release(int bucket) {
  BucketState& state = states_[bucket];
  const at::Tensor& shard = buckets_->shard(bucket);
  if (state.state == State::dirty && shard.const_data_ptr() != state.memory.const_data_ptr()) {
    join(bucket);
    state.users.hand_over(*streams_, streams_->current(), Handover::unused);
    device_->copy(shard, buckets_->slice(bucket, state.memory, communicator_->rank()));
    streams_->record(state.shard_written, streams_->current());
  }
  state.users.record_ends(*streams_);
  current_.clear();  // the next operator on it is a use of its own
  if (!std::exchange(state.planned_memory, false)) {
    count_memory(-static_cast<int64_t>(state.memory.is_alias_of(shard) ? 0 : state.memory.nbytes()));
  }
  state.memory.reset();
  live_numel_ -= bucket_numel_[bucket];
}

// The current stream uses the values from now on.
void Residency::join(int bucket) {
  BucketState& state = states_[bucket];
  const StreamId stream = streams_->current();
  if (state.users.has(stream)) return;
  streams_->wait(state.gathered, stream, Handover::gathered);
  state.users.add(stream);
}

void Residency::finish_gather(int bucket) {
  auto work = std::move(states_[bucket].work);
  if (!work) throw CommError("the all-gather of " + buckets_->label(bucket) + " has failed before");
  const auto begin = Clock::now();
  work->wait();
  const auto waited = Clock::now() - begin;
  ++(waited < kReady ? report_.ready : report_.waited);
  report_.waited_ms += std::chrono::duration<double, std::milli>(waited).count();
}

bool Residency::traced() const {
  if (communicator_->world_size() == 1) return false;  // gathering costs nothing
  return training_ || partitioned_numel_ > limits_.max_live;
}

void Residency::note_use(const OperatorUse& use, std::span<const int> buckets) {
  ++clock_;
  set_training(in_training_());
  if (traced()) {
    if (!training_ && trace().may_begin_again(buckets) && trace().reason(0) == describe(use)) {
      finish_iteration();
    }
    const bool first = !trace().started();
    const bool followed = trace().following();
    if (const GatherPlan::Step* step = trace().follow(buckets)) {
      if (first) follow(trace().plan().initial);
      for (int bucket : step->releases) {
        if (states_[bucket].state != State::sharded && states_[bucket].pins == 0) {
          move(bucket, State::sharded);
        }
      }
      follow(step->gathers);
    } else {
      if (followed) free_arena();
      trace().record(buckets, describe(use));
    }
  }
  for (int bucket : buckets) states_[bucket].last_use = clock_;
  const bool missing =
      std::ranges::any_of(buckets, [&](int bucket) { return states_[bucket].state == State::sharded; });
  if (missing) gather_on_demand(buckets, describe(use));
  current_.assign(buckets.begin(), buckets.end());
}

void Residency::follow(std::span<const GatherPlan::Gather> gathers) {
  c10::SmallVector<Start, 4> starts;
  for (const GatherPlan::Gather& gather : gathers) {
    BucketState& state = states_[gather.bucket];
    if (state.state != State::sharded) continue;  // a scope holds it
    state.memory = free_place(gather);
    state.planned_memory = state.memory.defined();
    if (!state.planned_memory) state.memory = unplanned_memory(gather.bucket);
    starts.push_back({gather.bucket, trace().reason(gather.use)});
  }
  start_gathers(starts);
}

// Undefined where an operator or a scope has kept a bucket past the plan's release, or an arena of another
// plan.
at::Tensor Residency::free_place(const GatherPlan::Gather& gather) const {
  const int64_t end = gather.offset + bucket_numel_[gather.bucket];
  if (!arena_.defined() || end > arena_.numel()) return {};
  for (size_t bucket = 0; bucket < states_.size(); ++bucket) {
    const BucketState& state = states_[bucket];
    if (!state.planned_memory) continue;
    const int64_t begin = state.memory.storage_offset();
    if (begin < end && gather.offset < begin + bucket_numel_[bucket]) return {};
  }
  return arena_.narrow(0, gather.offset, bucket_numel_[gather.bucket]);
}

void Residency::gather_on_demand(std::span<const int> buckets, const std::string& reason) {
  make_room(buckets);
  c10::SmallVector<Start, 4> starts;
  for (int bucket : buckets) {
    if (states_[bucket].state != State::sharded) continue;
    states_[bucket].memory = unplanned_memory(bucket);
    starts.push_back({bucket, reason});
  }
  start_gathers(starts);
}

// What was used longest ago goes first.
void Residency::make_room(std::span<const int> buckets) {
  int64_t missing = 0;
  for (int bucket : buckets) {
    if (states_[bucket].state == State::sharded) missing += bucket_numel_[bucket];
  }
  while (live_numel_ + missing > limits_.max_live) {
    int oldest = -1;
    for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
      const BucketState& state = states_[bucket];
      if (!buckets_->partitioned(bucket) || state.state == State::sharded || state.pins > 0) continue;
      if (std::ranges::find(buckets, bucket) != buckets.end()) continue;
      if (oldest < 0 || state.last_use < states_[oldest].last_use) oldest = bucket;
    }
    if (oldest < 0) return;
    move(oldest, State::sharded);
  }
}

at::Tensor Residency::unplanned_memory(int bucket) {
  if (communicator_->world_size() == 1) return buckets_->shard(bucket);
  StreamScope scope(*streams_, Lane::gather);
  at::Tensor memory = device_->allocate(bucket_numel_[bucket], scalar_type(buckets_->dtype()));
  ++report_.unplanned_allocations;
  count_memory(static_cast<int64_t>(memory.nbytes()));
  return memory;
}

void Residency::count_memory(int64_t bytes) {
  report_.resident_bytes += bytes;
  report_.peak_resident_bytes = std::max(report_.peak_resident_bytes, report_.resident_bytes);
}

void Residency::finish_iteration() {
  std::lock_guard lock(mutex_);
  release_unpinned();
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    if (!buckets_->partitioned(bucket) && states_[bucket].state == State::gathering) {
      move(bucket, State::resident);
    }
  }
  if (traced()) {
    trace().finish(bucket_numel_, limits_);
    fit_arena();
  }
  warn_of_copies();
}

void Residency::release_unpinned() {
  current_.clear();
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    const BucketState& state = states_[bucket];
    if (buckets_->partitioned(bucket) && state.state != State::sharded && state.pins == 0) {
      move(bucket, State::sharded);
    }
  }
}

// The module says itself in which mode it is: a change between two uses begins an iteration of the other
// trace.
void Residency::set_training(bool training) {
  if (training == training_) return;
  finish_iteration();
  training_ = training;
  free_arena();
  if (traced()) fit_arena();
}

// An arena that is large enough for the plan stays; none is larger than the limits allow.
void Residency::fit_arena() {
  const int64_t needed = trace().plan().arena_numel;
  if (arena_.defined() && arena_.numel() >= needed) return;
  free_arena();
  if (arena_.defined() || needed == 0) return;
  StreamScope scope(*streams_, Lane::gather);
  arena_ = communicator_->allocate(needed, scalar_type(buckets_->dtype()));
  count_memory(static_cast<int64_t>(arena_.nbytes()));
}

// What is not planned takes its place, so that both together keep the limits. Stays while a scope keeps a
// bucket in it.
void Residency::free_arena() {
  release_unpinned();
  if (!arena_.defined() || std::ranges::any_of(states_, &BucketState::planned_memory)) return;
  count_memory(-static_cast<int64_t>(arena_.nbytes()));
  arena_.reset();
}

// The shard is read by gathers; where it is a part of what they bring, or all of it, by every user too.
void Residency::start_update(int bucket) {
  std::lock_guard lock(mutex_);
  const StreamId stream = streams_->current();
  BucketState& state = states_[bucket];
  streams_->wait(state.shard_written, stream, Handover::updated);
  streams_->wait(state.gathered, stream, Handover::gathered);
  if (!buckets_->partitioned(bucket)) {
    state.users.hand_over(*streams_, stream, Handover::unused);
  } else {
    state.users.wait_for_ends(*streams_, stream, Handover::unused);
  }
}

void Residency::finish_update(int bucket, bool gathers) {
  std::lock_guard lock(mutex_);
  BucketState& state = states_[bucket];
  streams_->record(state.shard_written, streams_->current());
  if (buckets_->partitioned(bucket)) return;
  if (gathers) {
    Start start{bucket, "after an update"};
    start_gathers({&start, 1});
  } else {
    streams_->record(state.gathered, streams_->current());
    state.users.clear();
  }
}

void Residency::synchronize() {
  std::lock_guard lock(mutex_);
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
    if (states_[bucket].state != State::sharded) join(bucket);
  }
}

void Residency::hold(std::span<const int> buckets) {
  std::lock_guard lock(mutex_);
  std::vector<int> partitioned;
  for (int bucket : buckets) {
    if (buckets_->partitioned(bucket)) partitioned.push_back(bucket);
  }
  gather_on_demand(partitioned, "for a GatheredParameters scope");
  for (int bucket : buckets) {
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
  }
  for (int bucket : buckets) {
    pin(bucket);
    join(bucket);
  }
}

void Residency::unhold(std::span<const int> buckets, bool written) {
  std::lock_guard lock(mutex_);
  for (int bucket : buckets) {
    const BucketState& state = states_[bucket];
    const bool partitioned = buckets_->partitioned(bucket);
    if (written) buckets_->note_written(bucket);
    if (written && partitioned) move(bucket, State::dirty);
    unpin(bucket);
    if (state.pins == 0 && partitioned && !state.planned_memory) move(bucket, State::sharded);
  }
}

at::Tensor Residency::held_values(int bucket) const {
  std::lock_guard lock(mutex_);
  return states_[bucket].memory;
}

// Copies of parameters that the graph keeps until backward escape every limit.
void Residency::watch_copies(const OperatorUse& use) {
  if (warned_of_copies_ || !(use.op == to_copy_) || !c10::GradMode::is_enabled()) return;
  for (const Touched& item : use.touched) escaped_bytes_ += static_cast<int64_t>(item.tensor->nbytes());
}

void Residency::warn_of_copies() {
  if (warned_of_copies_ || escaped_bytes_ == 0) return;
  warned_of_copies_ = true;
  if (communicator_->rank() != 0) return;
  log_warning(
      "the model converted " + std::to_string(escaped_bytes_) +
      " bytes of partitioned parameters to another dtype or device in one iteration (autocast, .to()): "
      "the copies are whole and live until backward, outside of stage3_max_live_parameters");
}

std::string Residency::describe(const OperatorUse& use) const {
  const Touched& first = use.touched.front();
  const int bucket = buckets_->bucket_of(first.owner);
  const int64_t bytes = first.tensor->storage_offset() * static_cast<int64_t>(first.tensor->element_size());
  const int parameter = buckets_->parameter_at(bucket, bytes / size_of(buckets_->dtype()));
  return "for " + use.op.operator_name().name + " on " + buckets_->parameters()[parameter].name;
}

ResidencyReport Residency::report() const {
  std::lock_guard lock(mutex_);
  ResidencyReport report = report_;
  report.departures = training_trace_.departures() + inference_trace_.departures();
  return report;
}

}  // namespace zerorun
