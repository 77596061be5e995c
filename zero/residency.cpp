#include "zero/residency.h"

#include <algorithm>
#include <utility>

#include "base/activity_board.h"
#include "base/timeline.h"
#include "device/dtypes.h"

namespace zerorun {

Residency::Residency(Buckets& buckets, SliceStore& store, Communicator& communicator, GatherLimits limits,
                     std::function<bool()> in_training, const GatherWays& ways)
    : buckets_(&buckets),
      store_(&store),
      communicator_(&communicator),
      streams_(&communicator.device().streams()),
      limits_(limits),
      in_training_(std::move(in_training)),
      gathered_(buckets, store, communicator, ways),
      writes_(gathered_, buckets, store, communicator),
      last_use_(store.count()),
      scopes_(store.count()),
      casts_(buckets.parameters().size()) {
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    bucket_numel_.push_back(store.layout(bucket).numel);
    fetches_shards_ = fetches_shards_ || buckets.shard_is_fetched(bucket);
  }
  for (int bucket : gathered_.temporary()) comes_and_goes_numel_ += bucket_numel_[bucket];
  buckets.listen(this);
}

Residency::~Residency() {
  gathered_.leave();
}

bool Residency::has_pending_writes() const {
  std::lock_guard lock(mutex_);
  return writes_.has_writes();
}

bool Residency::allows_lone_reads() const {
  std::lock_guard lock(mutex_);
  const bool shares = std::ranges::any_of(gathered_.permanent(),
                                          [&](int bucket) { return gathered_.kind(bucket).around_uses(); });
  return gathered_.temporary().empty() && !(shares && writes_.has_writes());
}

void Residency::enter(const c10::OperatorHandle& op, std::span<const Touched> touched) {
  timeline::note_use();
  activity::note_use();
  std::lock_guard lock(mutex_);
  c10::SmallVector<int, 6> passing;  // the touched buckets that come and go
  bool pinned = true;  // enclosing operators or scopes pin all of `passing`: this operator is no new use
  bool shares_writes = false;
  bool is_new_use = false;
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    const BucketKind kind = gathered_.kind(bucket);
    if (!kind.around_uses()) continue;
    const bool is_unpinned = gathered_.pins(bucket) == 0;
    // If the program writes again to a bucket whose earlier writes the other ranks have not received, this
    // does not count as a use. So the ranks do not exchange the writes yet ([Note: writes to shared
    // buckets]).
    const bool goes_on_writing = item.written && writes_.has_unshared_write(bucket);
    shares_writes = shares_writes || (is_unpinned && !goes_on_writing);
    if (!kind.comes_and_goes()) continue;
    passing.push_back(bucket);
    pinned = pinned && !is_unpinned;
  }
  if (shares_writes && writes_.has_writes()) writes_.share_all();
  if (!pinned) {
    std::sort(passing.begin(), passing.end());
    is_new_use = !is_current(passing);
    if (is_new_use) note_use({op, touched}, passing);
  }
  if (!passing.empty()) escaped_copies_.note(op, touched);
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    gathered_.finish_gather(bucket);
    if (!item.written) continue;
    if (gathered_.is_rounded(bucket) && gathered_.pins(bucket) == 0)
      gather_exactly(bucket, describe({op, touched}));
    if (gathered_.kind(bucket).copied_for_writes()) {
      gathered_.make_copy(bucket);
    } else {
      gathered_.before_write(bucket);
    }
  }
  if (is_new_use && use_observer_) use_observer_->gathered(passing);
  for (const Touched& item : touched) {
    const int bucket = buckets_->bucket_of(item.owner);
    gathered_.pin(bucket);
    gathered_.join(bucket);
    streams_->note_use(gathered_.memory().of(bucket), item.written);
    if (!item.written) continue;
    buckets_->masters().note_written(bucket);
    if (item.several) {
      casts_.note_changed(store_->layout(bucket).parameters);
    } else {
      const int parameter = parameter_of(bucket, *item.tensor);
      casts_.note_changed({&parameter, 1});
    }
    if (gathered_.kind(bucket).moves_writes()) gathered_.move(bucket, State::dirty);
  }
}

void Residency::leave(std::span<const Touched> touched) noexcept {
  std::lock_guard lock(mutex_);
  for (const Touched& item : touched) gathered_.unpin(buckets_->bucket_of(item.owner));
}

void Residency::cast(const at::Tensor& source, const at::Tensor& copy) {
  std::lock_guard lock(mutex_);
  const int bucket = buckets_->bucket_of(owner_of(source));
  // Within a scope the program may have code that gets addresses, or may write through them.
  if (!gathered_.kind(bucket).around_uses() || scopes_[bucket] > 0) return;
  const int parameter = parameter_of(bucket, source);
  const bool is_taken = casts_.take_over(parameter, source, copy, buckets_->parameters()[parameter].name);
  if (is_taken && gathered_.kind(bucket).comes_and_goes()) escaped_copies_.forget(source);
}

void Residency::start_update(int bucket) {
  std::lock_guard lock(mutex_);
  casts_.note_changed(store_->layout(bucket).parameters);
  gathered_.start_update(bucket);
}

void Residency::finish_update(int bucket, bool gathers) {
  std::lock_guard lock(mutex_);
  gathered_.finish_update(bucket, gathers);
}

void Residency::hold(std::span<const int> buckets) {
  std::lock_guard lock(mutex_);
  writes_.finish_queries();
  if (use_observer_) use_observer_->before_gathers();
  const auto is_written = [&](int bucket) {
    return gathered_.state(bucket) == State::dirty && gathered_.pins(bucket) == 0;
  };
  std::vector<int> passing;
  for (int bucket : buckets) {
    const BucketKind kind = gathered_.kind(bucket);
    if (!kind.comes_and_goes()) continue;
    passing.push_back(bucket);
    if (gathered_.is_rounded(bucket) && gathered_.may_be_released(bucket))
      gathered_.move(bucket, State::sharded);
    // Writes that all ranks made before the scope must reach all slices.
    if (kind.copied_for_writes() && is_written(bucket)) gathered_.move(bucket, State::sharded);
  }
  gather_on_demand(passing, "for a GatheredParameters scope", /*exactly=*/true);
  for (int bucket : buckets) {
    gathered_.finish_gather(bucket);
    gathered_.drop_near_copy(bucket);  // ranks may leave the scope in different ways, and some may write
    // Writes that all ranks made before the scope must not be lost if the scope is abandoned.
    if (gathered_.kind(bucket).comes_and_goes() && is_written(bucket)) {
      gathered_.write_back(bucket);
      gathered_.move(bucket, State::resident);
    }
    writes_.copy_for_scope(bucket);
  }
  for (int bucket : buckets) {
    // before_write() is called now, because writes through raw pointers inside the scope cannot be observed.
    // It may throw, so nothing is pinned yet.
    if (!gathered_.kind(bucket).copied_for_writes()) gathered_.before_write(bucket);
  }
  for (int bucket : buckets) {
    gathered_.pin(bucket);
    gathered_.join(bucket);
    ++scopes_[bucket];
  }
}

bool Residency::undoes_writes(int bucket) const {
  std::lock_guard lock(mutex_);
  if (gathered_.pins(bucket) != 1) return false;  // another scope has held it before
  if (!gathered_.kind(bucket).comes_and_goes()) return writes_.is_copied_for_scope(bucket);
  return !buckets_->shard(bucket).is_alias_of(gathered_.memory().of(bucket));
}

void Residency::unhold(std::span<const int> buckets, ScopeEnd end) {
  std::lock_guard lock(mutex_);
  std::vector<int> unpinned;
  for (int bucket : buckets) {
    --scopes_[bucket];
    if (end == ScopeEnd::written) buckets_->masters().note_written(bucket);
    if (end == ScopeEnd::written) casts_.note_changed(store_->layout(bucket).parameters);
    if (end == ScopeEnd::written && gathered_.kind(bucket).moves_writes())
      gathered_.move(bucket, State::dirty);
    gathered_.unpin(bucket);
    if (gathered_.pins(bucket) == 0) unpinned.push_back(bucket);
  }
  writes_.end_scope(unpinned, end);
}

at::Tensor Residency::start_write(int bucket) {
  std::lock_guard lock(mutex_);
  gathered_.join(bucket);
  gathered_.memory().users(bucket).hand_over(*streams_, streams_->current(), Handover::unused);
  return gathered_.memory().of(bucket);
}

void Residency::synchronize() {
  std::lock_guard lock(mutex_);
  for (int bucket = 0; bucket < store_->count(); ++bucket) {
    gathered_.finish_gather(bucket);
    if (gathered_.state(bucket) != State::sharded) gathered_.join(bucket);
    const BucketKind kind = gathered_.kind(bucket);
    if (kind.copied_for_writes() && !kind.around_uses()) gathered_.open_copy(bucket);
  }
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
        if (gathered_.may_be_released(bucket)) gathered_.move(bucket, State::sharded);
      }
      follow(step->gathers);
    } else {
      if (followed) free_arena();
      trace().record(buckets, describe(use));
    }
  }
  for (int bucket : buckets) last_use_[bucket] = clock_;
  const bool missing =
      std::ranges::any_of(buckets, [&](int bucket) { return gathered_.state(bucket) == State::sharded; });
  if (missing) gather_on_demand(buckets, describe(use));
  current_.assign(buckets.begin(), buckets.end());
  releases_before_use_ = gathered_.releases();
}

// Whether the last use was one of the same buckets. After a release the next operator counts as a new use.
bool Residency::is_current(std::span<const int> buckets) const {
  return releases_before_use_ == gathered_.releases() && std::ranges::equal(buckets, current_);
}

// Announces the order in which the new iteration will read shards from files.
void Residency::plan_reads() {
  if (!fetches_shards_) return;
  reads_.clear();
  auto add = [&](const GatherPlan::Gather& gather) { reads_.push_back({gather.bucket, 0}); };
  std::ranges::for_each(trace().plan().initial, add);
  for (const GatherPlan::Step& step : trace().plan().steps) std::ranges::for_each(step.gathers, add);
  if (store_->value_files()) store_->value_files()->plan(reads_);
}

void Residency::follow(std::span<const GatherPlan::Gather> gathers) {
  c10::SmallVector<Start, 4> starts;
  for (const GatherPlan::Gather& gather : gathers) {
    if (gathered_.state(gather.bucket) != State::sharded) continue;  // a scope holds it
    if (!gathered_.memory().take_planned(gather.bucket, gather.offset))
      gathered_.memory().take_unplanned(gather.bucket);
    starts.push_back({gather.bucket, trace().reason(gather.use)});
  }
  gathered_.start_gathers(starts);
}

void Residency::gather_on_demand(std::span<const int> buckets, const std::string& reason, bool exactly) {
  make_room(buckets);
  c10::SmallVector<Start, 4> starts;
  for (int bucket : buckets) {
    if (gathered_.state(bucket) != State::sharded) continue;
    gathered_.memory().take_unplanned(bucket);
    starts.push_back({bucket, reason, exactly});
  }
  gathered_.start_gathers(starts);
}

// Gathers a bucket that nothing pins again.
void Residency::gather_exactly(int bucket, const std::string& reason) {
  if (gathered_.state(bucket) != State::sharded) gathered_.move(bucket, State::sharded);
  gather_on_demand({&bucket, 1}, reason, /*exactly=*/true);
  gathered_.finish_gather(bucket);
}

// Releases other buckets, least recently used first, until `buckets` fit within the limit.
void Residency::make_room(std::span<const int> buckets) {
  int64_t missing = 0;
  for (int bucket : buckets) {
    if (gathered_.state(bucket) == State::sharded) missing += bucket_numel_[bucket];
  }
  while (gathered_.live_numel() + missing > limits_.max_live) {
    int oldest = -1;
    for (int bucket : gathered_.temporary()) {
      if (!gathered_.may_be_released(bucket)) continue;
      if (std::ranges::find(buckets, bucket) != buckets.end()) continue;
      if (oldest < 0 || last_use_[bucket] < last_use_[oldest]) oldest = bucket;
    }
    if (oldest < 0) return;
    gathered_.move(oldest, State::sharded);
  }
}

void Residency::set_ends_surely(bool ends_surely) {
  std::lock_guard lock(mutex_);
  training_trace_.set_ends_surely(ends_surely);
}

void Residency::finish_iteration() {
  std::lock_guard lock(mutex_);
  writes_.finish_queries();
  release_unpinned();
  if (writes_.has_writes()) writes_.share_all();
  for (int bucket : gathered_.permanent()) gathered_.finish_gather(bucket);
  if (traced()) {
    trace().finish(bucket_numel_, limits_);
    gathered_.memory().fit_arena(trace().plan().arena_numel);
  }
  escaped_copies_.finish_iteration(communicator_->rank_in_job(communicator_->rank()) == 0);
}

void Residency::release_unpinned() {
  current_.clear();
  for (int bucket : gathered_.temporary()) {
    if (gathered_.may_be_released(bucket)) gathered_.move(bucket, State::sharded);
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
    gathered_.memory().fit_arena(trace().plan().arena_numel);
  } else if (gathered_.memory().arena_numel() + comes_and_goes_numel_ > limits_.max_live) {
    gathered_.memory().free_arena();
  }
}

// Frees the arena, so that unplanned gathers stay within the limits. The arena stays while a scope holds a
// bucket in it.
void Residency::free_arena() {
  release_unpinned();
  gathered_.memory().free_arena();
}

std::string Residency::describe(const OperatorUse& use) const {
  const Touched& first = use.touched.front();
  return "for " + use.op.operator_name().name + " on " +
         buckets_->parameters()[parameter_of(buckets_->bucket_of(first.owner), *first.tensor)].name;
}

int Residency::parameter_of(int bucket, const at::Tensor& tensor) const {
  const int64_t bytes = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  return buckets_->parameter_at(bucket, bytes / size_of(buckets_->dtype()));
}

ResidencyReport Residency::report() const {
  std::lock_guard lock(mutex_);
  ResidencyReport report = gathered_.report();
  casts_.add_to(report);
  report.departures = training_trace_.departures() + inference_trace_.departures();
  return report;
}

}  // namespace zerorun
