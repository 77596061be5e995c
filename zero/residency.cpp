#include "zero/residency.h"

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

// A gather is counted as ready if the wait for it is shorter than this. Only the report uses this number.
constexpr std::chrono::microseconds kReady(50);

}  // namespace

Residency::Residency(Buckets& buckets, Communicator& communicator, GatherLimits limits,
                     std::function<bool()> in_training)
    : buckets_(&buckets),
      communicator_(&communicator),
      device_(&communicator.device()),
      streams_(&communicator.device().streams()),
      limits_(limits),
      in_training_(std::move(in_training)),
      states_(buckets.count()),
      memory_(buckets, communicator) {
  for (int bucket = 0; bucket < buckets.count(); ++bucket) {
    bucket_numel_.push_back(buckets.layout(bucket).numel);
    streams_->record(states_[bucket].shard_written, streams_->current());
    states_[bucket].kind = buckets.kind(bucket);
    fetches_shards_ = fetches_shards_ || buckets.shard_is_fetched(bucket);
    if (states_[bucket].kind.comes_and_goes()) {
      passing_.push_back(bucket);
      comes_and_goes_numel_ += bucket_numel_.back();
    } else {
      staying_.push_back(bucket);
      states_[bucket].state = State::resident;
    }
  }
  buckets.listen(this);
}

// The model keeps the values of whole buckets after the engine is destroyed, so their gathers must finish.
Residency::~Residency() {
  for (int bucket : staying_) {
    if (states_[bucket].kind.around_uses()) continue;
    try {
      if (states_[bucket].state == State::gathering) move(bucket, State::resident);
      streams_->await(states_[bucket].gathered, communicator_->timeout(), buckets_->label(bucket));
      if (memory_.is_copy(bucket)) buckets_->leave_with(bucket, memory_.of(bucket));
    } catch (const std::exception& error) {
      buckets_->give_up(bucket);
      log_warning("the last update of " + buckets_->label(bucket) +
                  " did not arrive on this rank: " + error.what());
    }
  }
  for (BucketState& state : states_) state.work.reset();  // before the gathers' memory is freed
}

void Residency::enter(const c10::OperatorHandle& op, std::span<const Touched> touched) {
  std::lock_guard lock(mutex_);
  c10::SmallVector<int, 6> passing;  // the touched buckets that have memory only while they are gathered
  bool pinned = true;  // enclosing operators or scopes pin all of `passing`: this operator is no new use
  bool shares_writes = false;
  bool is_new_use = false;
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    const BucketKind kind = states_[bucket].kind;
    if (!kind.around_uses()) continue;
    const bool is_used = states_[bucket].pins == 0;
    // If the program writes again to a bucket whose earlier writes the other ranks have not received, this
    // does not count as a use. So the ranks do not exchange the writes yet ([Note: writes to shared
    // buckets]).
    const bool goes_on_writing = writer_queries_.empty() && item.written && written_before(bucket);
    shares_writes = shares_writes || (is_used && !goes_on_writing);
    if (!kind.comes_and_goes()) continue;
    passing.push_back(bucket);
    pinned = pinned && !is_used;
  }
  if (shares_writes && has_writes()) share_writes();
  if (!pinned) {
    std::sort(passing.begin(), passing.end());
    is_new_use = !std::ranges::equal(passing, current_);
    if (is_new_use) note_use({op, touched}, passing);
  }
  if (!passing.empty()) escaped_copies_.note(op, touched);
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
    if (!item.written) continue;
    if (states_[bucket].kind.copied_for_writes()) {
      make_copy(bucket);
    } else {
      before_write_(bucket);
    }
  }
  if (is_new_use && use_observer_) use_observer_->gathered(passing);
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    pin(bucket);
    join(bucket);
    streams_->note_use(memory_.of(bucket), item.written);
    if (!item.written) continue;
    buckets_->note_written(bucket);
    if (states_[bucket].kind.moves_writes()) move(bucket, State::dirty);
  }
}

void Residency::leave(std::span<const Touched> touched) noexcept {
  std::lock_guard lock(mutex_);
  for (const Touched& item : touched) unpin(buckets_->bucket_of(item.owner));
}

void Residency::pin(int bucket) {
  BucketState& state = states_[bucket];
  if (state.pins++ == 0 && guarded(bucket)) {
    give_memory(buckets_->storage(bucket), memory_.of(bucket).mutable_data_ptr());
  }
}

void Residency::unpin(int bucket) {
  if (--states_[bucket].pins == 0 && guarded(bucket)) take_memory(buckets_->storage(bucket));
}

const char* Residency::name_of(State state) {
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

bool Residency::may_move(int bucket, State to) const {
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

void Residency::move(int bucket, State to, std::string reason) {
  BucketState& state = states_[bucket];
  ZR_CHECK(may_move(bucket, to), buckets_->label(bucket) + " may not go from " + name_of(state.state) +
                                     " to " + name_of(to) + ", pinned by " + std::to_string(state.pins));
  const bool passing = state.kind.comes_and_goes();
  switch (to) {
    case State::gathering:
      if (!passing) take_memory(buckets_->storage(bucket));
      streams_->wait(state.shard_written, streams_->current(), Handover::updated);
      if (streams_->asynchronous()) memory_.wait_for_last_uses(bucket);
      state.work = gather(bucket, std::move(reason));
      if (passing) live_numel_ += bucket_numel_[bucket];
      ++report_.gathers;
      break;
    case State::resident:
      if (state.state != State::gathering) break;
      finish_gather(bucket);
      if (!guarded(bucket)) give_memory(buckets_->storage(bucket), memory_.of(bucket).mutable_data_ptr());
      break;
    case State::dirty:
      break;
    case State::sharded:
      if (state.state == State::gathering) finish_gather(bucket);
      release(bucket);
      break;
  }
  state.state = to;
}

template <typename Collective>
auto Residency::noting_lost_ranks(const Collective& collective) -> decltype(collective()) {
  try {
    return collective();
  } catch (const CommError&) {
    report_.lost_ranks = true;
    throw;
  }
}

// Starts the all-gather. If the shard is in a file or in host memory, first copies it into the memory of the
// gathered bucket.
std::unique_ptr<Work> Residency::gather(int bucket, std::string reason) {
  const at::Tensor& memory = memory_.of(bucket);
  at::Tensor own = buckets_->shard(bucket);
  if (buckets_->shard_is_fetched(bucket)) {
    own = buckets_->slice(bucket, memory, communicator_->rank());
    if (buckets_->gathers_once(bucket) && !buckets_->shared_gathers()->start(bucket)) {
      // The slice is still in the buffer and need not be copied. It is opened only because the planned reads
      // include it.
      buckets_->with_shard(bucket, ValueUse::read, [] {});
    } else {
      copy_shard(bucket, ValueUse::read, own, buckets_->shard(bucket));
    }
  }
  return noting_lost_ranks([&] {
    return communicator_->all_gather(memory, own, "parameters of " + buckets_->label(bucket),
                                     std::move(reason));
  });
}

// Starts gathers on the gather stream, after the last updates of the shards and the last uses of the memory.
void Residency::start_gathers(std::span<Start> starts) {
  if (starts.empty()) return;
  StreamScope scope(*streams_, Lane::gather);
  auto start_all = [&] {
    for (Start& start : starts) move(start.bucket, State::gathering, std::move(start.reason));
  };
  if (starts.size() > 1) {
    communicator_->group(start_all);
  } else {
    start_all();
  }
  for (const Start& start : starts) {
    streams_->record(states_[start.bucket].gathered, streams_->current());
    memory_.users(start.bucket).clear();
  }
}

void Residency::release(int bucket) {
  const bool once = buckets_->gathers_once(bucket);
  if (once) buckets_->shared_gathers()->release(bucket);
  if (states_[bucket].state == State::dirty) write_back(bucket);
  if (memory_.is_copy(bucket)) drop_copy(bucket);
  memory_.give_back(bucket);
  if (once) buckets_->shared_gathers()->give_back_pages();
  current_.clear();  // so that the next operator counts as a new use
  live_numel_ -= bucket_numel_[bucket];
}

// Call this before the current stream uses the values.
void Residency::join(int bucket) {
  const StreamId stream = streams_->current();
  StreamUsers& users = memory_.users(bucket);
  if (users.has(stream)) return;
  streams_->wait(states_[bucket].gathered, stream, Handover::gathered);
  users.add(stream);
}

void Residency::finish_gather(int bucket) {
  auto work = std::move(states_[bucket].work);
  if (!work) throw CommError("the all-gather of " + buckets_->label(bucket) + " has failed before");
  const auto begin = Clock::now();
  noting_lost_ranks([&] { work->wait(); });
  const auto waited = Clock::now() - begin;
  ++(waited < kReady ? report_.ready : report_.waited);
  report_.waited_ms += std::chrono::duration<double, std::milli>(waited).count();
}

bool Residency::traced() const {
  if (communicator_->world_size() == 1 && !fetches_shards_) return false;  // gathering costs nothing
  return training_ || comes_and_goes_numel_ > limits_.max_live;
}

void Residency::note_use(const OperatorUse& use, std::span<const int> buckets) {
  ++clock_;
  if (use_observer_) use_observer_->before_gathers();
  set_training(in_training_());
  if (traced()) {
    if (!training_ && trace().may_begin_again(buckets) && trace().reason(0) == describe(use)) {
      finish_iteration();
    }
    const bool first = !trace().started();
    const bool followed = trace().following();
    if (const GatherPlan::Step* step = trace().follow(buckets)) {
      if (first) {
        plan_reads();
        follow(trace().plan().initial);
      }
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

// Announces the order in which the new iteration will read shards from files.
void Residency::plan_reads() {
  if (!fetches_shards_) return;
  reads_.clear();
  auto add = [&](const GatherPlan::Gather& gather) { reads_.push_back({gather.bucket, 0}); };
  std::ranges::for_each(trace().plan().initial, add);
  for (const GatherPlan::Step& step : trace().plan().steps) std::ranges::for_each(step.gathers, add);
  buckets_->plan_reads(reads_);
}

void Residency::follow(std::span<const GatherPlan::Gather> gathers) {
  c10::SmallVector<Start, 4> starts;
  for (const GatherPlan::Gather& gather : gathers) {
    if (states_[gather.bucket].state != State::sharded) continue;  // a scope holds it
    if (!memory_.take_planned(gather.bucket, gather.offset)) memory_.take_unplanned(gather.bucket);
    starts.push_back({gather.bucket, trace().reason(gather.use)});
  }
  start_gathers(starts);
}

void Residency::gather_on_demand(std::span<const int> buckets, const std::string& reason) {
  make_room(buckets);
  c10::SmallVector<Start, 4> starts;
  for (int bucket : buckets) {
    if (states_[bucket].state != State::sharded) continue;
    memory_.take_unplanned(bucket);
    starts.push_back({bucket, reason});
  }
  start_gathers(starts);
}

// Releases other buckets, least recently used first, until `buckets` fit within the limit.
void Residency::make_room(std::span<const int> buckets) {
  int64_t missing = 0;
  for (int bucket : buckets) {
    if (states_[bucket].state == State::sharded) missing += bucket_numel_[bucket];
  }
  while (live_numel_ + missing > limits_.max_live) {
    int oldest = -1;
    for (int bucket : passing_) {
      const BucketState& state = states_[bucket];
      if (state.state == State::sharded || state.pins > 0) continue;
      if (std::ranges::find(buckets, bucket) != buckets.end()) continue;
      if (oldest < 0 || state.last_use < states_[oldest].last_use) oldest = bucket;
    }
    if (oldest < 0) return;
    move(oldest, State::sharded);
  }
}

void Residency::finish_iteration() {
  std::lock_guard lock(mutex_);
  finish_writer_queries();
  release_unpinned();
  if (has_writes()) share_writes();
  for (int bucket : staying_) {
    if (states_[bucket].state == State::gathering) move(bucket, State::resident);
  }
  if (traced()) {
    trace().finish(bucket_numel_, limits_);
    memory_.fit_arena(trace().plan().arena_numel);
  }
  escaped_copies_.finish_iteration(communicator_->rank() == 0);
}

void Residency::release_unpinned() {
  current_.clear();
  for (int bucket : passing_) {
    if (states_[bucket].state != State::sharded && states_[bucket].pins == 0) move(bucket, State::sharded);
  }
}

// Called at each use, because the program may switch between training and inference between two uses. A
// switch ends the iteration. If the new mode has no plan, the arena is freed, unless the arena and all
// buckets that come and go fit within the limit together.
void Residency::set_training(bool training) {
  if (training == training_) return;
  finish_iteration();
  training_ = training;
  if (traced() && trace().following()) {
    memory_.fit_arena(trace().plan().arena_numel);
  } else if (memory_.arena_numel() + comes_and_goes_numel_ > limits_.max_live) {
    memory_.free_arena();
  }
}

// Frees the arena, so that unplanned gathers stay within the limits. The arena stays while a scope holds a
// bucket in it.
void Residency::free_arena() {
  release_unpinned();
  memory_.free_arena();
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
  report.unplanned_allocations = memory_.unplanned_allocations();
  report.resident_bytes = memory_.bytes();
  report.peak_resident_bytes = memory_.peak_bytes();
  return report;
}

}  // namespace zerorun
