#include "cuda/nccl_watchdog.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/deadline.h"

namespace zerorun {
namespace {

// A collective that runs longer than this is published to the other ranks. A rank whose timeout expires
// compares its own collective with the published ones.
std::chrono::milliseconds slow(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout / 4, std::chrono::seconds(1));
}

// How long a rank whose collective has timed out tries to read the collectives of other ranks.
std::chrono::milliseconds patience_with_store(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::seconds(3));
}

}  // namespace

NcclWatchdog::NcclWatchdog(WatchdogOptions options, CollectiveProbe& probe,
                           std::unique_ptr<StoreCourier> courier)
    : options_(std::move(options)), probe_(probe), courier_(std::move(courier)) {}

NcclWatchdog::~NcclWatchdog() {
  stop();
}

void NcclWatchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(mutex_);
    thread_ended_ = true;
  }
  wake_second_.notify_all();
  if (second_thread_.joinable()) second_thread_.join();
  if (courier_) courier_->stop();
}

void NcclWatchdog::start() {
  thread_ = std::thread([this] { run(&NcclWatchdog::watch); });
  second_thread_ = std::thread([this] { run(&NcclWatchdog::watch_poll); });
}

size_t NcclWatchdog::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(records_.size());
    records_.emplace_back();
    probe_.prepare(records_.size());
  }
  const size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

NcclWatchdog::Record& NcclWatchdog::begin_record(size_t slot, State state) {
  Record& record = records_[slot];
  ZR_CHECK(record.state == State::free, "slot " + std::to_string(slot));
  record.state = state;
  record.started.reset();
  record.published = false;
  under_way_.push_back(slot);
  if (under_way_.size() == 1) wake_.notify_all();
  return record;
}

void NcclWatchdog::begin(size_t slot, std::span<const CollectiveCall> calls, const void* lane) {
  const std::lock_guard lock(mutex_);
  Record& record = begin_record(slot, State::begun);
  record.lane = lane;
  const CollectiveCall& first = calls.front();
  record.is_collective = true;
  record.kind = first.kind;
  record.label = first.label;
  record.reason = first.reason;
  record.more = calls.size() - 1;
  record.numel = first.input.numel();
  for (const CollectiveCall& call : calls) history_.add(call);
}

void NcclWatchdog::begin(size_t slot, const std::string& what, const void* lane) {
  const std::lock_guard lock(mutex_);
  Record& record = begin_record(slot, State::begun);
  record.lane = lane;
  record.is_collective = false;
  record.label = what;
}

void NcclWatchdog::enqueued(size_t slot) {
  const std::lock_guard lock(mutex_);
  records_[slot].state = State::enqueued;
}

size_t NcclWatchdog::begin_on_host(const std::string& what) {
  const size_t slot = take();
  const std::lock_guard lock(mutex_);
  Record& record = begin_record(slot, State::on_host);
  record.is_collective = false;
  record.label = what;
  record.started = options_.now();
  return slot;
}

void NcclWatchdog::end(size_t slot) {
  const std::lock_guard lock(mutex_);
  end_record(slot);
}

void NcclWatchdog::end_record(size_t slot) {
  Record& record = records_[slot];
  record.state = State::free;
  if (record.published) pending_changed_ = true;
  under_way_.erase(std::ranges::find(under_way_, slot));
  free_.push_back(slot);
}

PendingCollective NcclWatchdog::Record::pending() const {
  if (!is_collective) return {label, label};
  const std::string others = more == 0 ? "" : " and " + std::to_string(more) + " more";
  PendingCollective one = pending_collective_of({kind, {}, {}, 0, label, reason}, numel);
  return {one.agreed + others, one.words + others};
}

std::vector<PendingCollective> NcclWatchdog::published() const {
  std::vector<PendingCollective> all;
  for (size_t slot : under_way_) {
    if (records_[slot].published) all.push_back(records_[slot].pending());
  }
  return all;
}

// Describes the oldest collective that the GPU has started; if it has started none, the oldest in the queue.
std::string NcclWatchdog::words_of_oldest() const {
  const std::lock_guard lock(mutex_);
  auto oldest =
      std::ranges::find_if(under_way_, [&](size_t slot) { return records_[slot].started.has_value(); });
  if (oldest == under_way_.end()) oldest = under_way_.begin();
  return oldest == under_way_.end() ? "the communicator" : records_[*oldest].pending().words;
}

// Asks about the oldest collective of each lane, because the others of the lane start after it has ended.
std::optional<NcclWatchdog::Question> NcclWatchdog::next_question() {
  for (size_t slot : under_way_) {
    const Record& record = records_[slot];
    if (record.state == State::on_host || std::ranges::find(asked_, record.lane) != asked_.end()) continue;
    asked_.push_back(record.lane);
    return Question{slot, record.started.has_value(), record.state == State::enqueued};
  }
  return std::nullopt;
}

// After a collective has ended, its lane is asked again.
void NcclWatchdog::note_answer(const Question& question, bool finished, bool started) {
  Record& record = records_[question.slot];
  if (finished) {
    std::erase(asked_, record.lane);
    end_record(question.slot);
  } else if (started && !record.started) {
    record.started = options_.now();
  }
}

// Asks the probe without mutex_. Meanwhile the slots stay valid, because only this function ends collectives.
void NcclWatchdog::ask_lanes() {
  std::unique_lock lock(mutex_);
  asked_.clear();
  while (const std::optional<Question> question = next_question()) {
    lock.unlock();
    const bool finished = question->enqueued && probe_.finished(question->slot);
    const bool started = question->started || finished || probe_.started(question->slot);
    lock.lock();
    note_answer(*question, finished, started);
  }
}

// Returns the first operation that has timed out.
std::optional<PendingCollective> NcclWatchdog::look_at_clock() {
  std::optional<PendingCollective> missed;
  const Clock::time_point now = options_.now();
  for (size_t slot : under_way_) {
    Record& record = records_[slot];
    if (!record.started) continue;
    const auto waited = now - *record.started;
    if (!record.published && waited >= slow(options_.timeout)) record.published = pending_changed_ = true;
    if (!missed && waited >= options_.timeout) missed = record.pending();
  }
  return missed;
}

void NcclWatchdog::poll() {
  std::optional<PendingCollective> missed;
  std::optional<std::vector<PendingCollective>> to_tell;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    asking_since_ = options_.now();
  }
  ask_lanes();
  const std::string failure = probe_.failure();
  {
    const std::lock_guard lock(mutex_);
    asking_since_.reset();
    if (broken_) return;
    missed = look_at_clock();
    if (std::exchange(pending_changed_, false)) to_tell = published();
  }
  if (to_tell && courier_) courier_->publish(std::move(*to_tell));
  if (missed) {
    explain_and_break(*missed);
  } else if (!failure.empty()) {
    break_for(words_of_oldest() + ": " + failure);
  } else if (courier_) {
    compare_histories();
  }
}

void NcclWatchdog::check_poll() {
  {
    const std::lock_guard lock(mutex_);
    if (broken_ || !asking_since_ || options_.now() - *asking_since_ < options_.timeout) return;
  }
  const std::string reason =
      missed_end(words_of_oldest() + ": a question of the watchdog to the GPU", options_.timeout) +
      ": another call to CUDA hangs in this process";
  log_warning("rank " + std::to_string(options_.in_job(options_.rank)) + ": " +
              reason);  // no thread may be able to throw it
  break_for(reason);
}

// Each rank compares its history with rank 0's, at most once per second, because every comparison calls the
// store.
void NcclWatchdog::compare_histories() {
  constexpr std::chrono::seconds kPeriod(1);
  const std::optional<std::string> theirs = courier_->take_posted();
  std::optional<std::string> difference;
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    if (theirs) difference = history_.difference(*theirs, options_.in_job(options_.rank), options_.in_job(0));
    const Clock::time_point now = options_.now();
    if (!difference && now - compared_ < kPeriod) return;
    compared_ = now;
    if (options_.rank == 0) mine = history_.summary();
  }
  if (difference) return break_for(*difference);
  if (options_.rank == 0) {
    courier_->post_for_all(std::move(mine));
  } else {
    courier_->ask_posted();
  }
}

void NcclWatchdog::explain_and_break(const PendingCollective& missed) {
  if (!courier_) return break_for(missed_end(missed.words, options_.timeout));
  const auto all = courier_->read_all(patience_with_store(options_.timeout));
  if (!all) return break_for(explain_missed_in_silence(missed, options_.timeout));
  const bool others_wait =
      *all && std::ranges::any_of(**all, [](const auto& pending) { return !pending.empty(); });
  if (options_.rank == 0 && others_wait) std::this_thread::sleep_for(kTimeToRead);
  break_for(explain_missed(options_.rank, missed, *all, options_.timeout, options_.ranks));
}

void NcclWatchdog::fail(size_t slot, const std::string& reason) {
  std::string words;
  {
    const std::lock_guard lock(mutex_);
    words = records_[slot].pending().words;
  }
  break_for(words + ": " + reason);
}

void NcclWatchdog::break_for(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_for_ = reason;
    broken_ = true;
  }
  abort();
}

// Every use of the communicator throws the reason, even if the abort fails.
void NcclWatchdog::abort() {
  try {
    probe_.abort();
  } catch (const std::exception& error) {
    log_warning("rank " + std::to_string(options_.in_job(options_.rank)) +
                " cannot abort its collectives: " + error.what());
  }
}

void NcclWatchdog::check() const {
  if (!broken_) return;
  const std::lock_guard lock(mutex_);
  throw CommError(broken_for_);
}

// Without its threads the watchdog would not find what it must, so an error of a thread breaks the
// communicator.
void NcclWatchdog::run(void (NcclWatchdog::*body)()) {
  std::string reason;
  try {
    (this->*body)();
    return;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  break_for("the watchdog of collectives failed: " + reason);
}

void NcclWatchdog::watch() {
  probe_.enter_thread();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (under_way_.empty() || broken_) {
      wake_.wait(lock, [this] { return stopping_ || !(under_way_.empty() || broken_); });
      continue;
    }
    wake_.wait_for(lock, options_.period, [this] { return stopping_; });
    lock.unlock();
    poll();
    lock.lock();
  }
}

void NcclWatchdog::watch_poll() {
  constexpr std::chrono::milliseconds kLongest(1000);
  const auto period = std::min<std::chrono::milliseconds>(options_.timeout / 4, kLongest);
  std::unique_lock lock(mutex_);
  while (!thread_ended_ && !broken_) {
    wake_second_.wait_for(lock, period, [this] { return thread_ended_; });
    lock.unlock();
    check_poll();
    lock.lock();
  }
}

}  // namespace zerorun
