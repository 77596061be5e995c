#include "comm/gloo/failure_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/deadline.h"

namespace zerorun {
namespace {

constexpr char kAnnounced[] = "announced";
constexpr std::chrono::milliseconds kLongWait(500);      // how long a wait must have lasted
constexpr std::chrono::milliseconds kRequestLimit(500);  // of a request to the store

// How often the watch looks. With many ranks it looks less often, because one store serves them all.
std::chrono::milliseconds interval_of(int ranks) {
  return std::chrono::milliseconds(std::max(500, 5 * ranks));
}

}  // namespace

FailureWatch::FailureWatch(StorePointer store, int rank, int world_size)
    : store_(std::move(store)), rank_(rank), look_(interval_of(world_size)), worker_([this] { run(); }) {}

FailureWatch::~FailureWatch() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_or_due_.notify_one();
  worker_.join();
}

void FailureWatch::announce(const std::string& error) noexcept try {
  if (!announced().empty()) return;
  learn(store_->claim(kAnnounced, "rank " + std::to_string(rank_) + " cannot go on: " + error,
                      Deadline(kRequestLimit)));
  let_others_look();
} catch (const std::exception&) {
  // Ignored: the store does not answer, or is gone because rank 0 has ended.
}

std::string FailureWatch::announced() const {
  std::lock_guard lock(mutex_);
  return announced_;
}

std::string FailureWatch::find() noexcept try {
  if (announced().empty()) learn(read());
  const std::string text = announced();
  if (!text.empty()) let_others_look();
  return text;
} catch (const std::exception&) {
  return "";  // for the same reason as in announce()
}

FailureWatch::Wait::Wait(FailureWatch& watch, std::function<void()> stop)
    : watch_(watch), stop_(std::move(stop)) {
  std::lock_guard lock(watch_.mutex_);
  place_ = watch_.waits_.insert(watch_.waits_.end(), this);
  if (!watch_.announced_.empty()) stop_();
}

FailureWatch::Wait::~Wait() {
  std::lock_guard lock(watch_.mutex_);
  watch_.waits_.erase(place_);
}

void FailureWatch::run() {
  std::unique_lock lock(mutex_);
  while (!over_or_due_.wait_for(lock, look_, [this] { return is_over_ || !announced_.empty(); })) {
    if (!waits_long()) continue;
    lock.unlock();
    try {
      learn(read());
    } catch (const std::exception&) {
      // The wait itself ends at its deadline.
    }
    lock.lock();
  }
}

std::string FailureWatch::read() const {
  return store_->find(kAnnounced, Deadline(kRequestLimit)).value_or("");
}

// Ends the waits of all threads of this rank. Later ones end when they begin.
void FailureWatch::learn(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (text.empty() || !announced_.empty()) return;
  announced_ = text;
  for (const Wait* wait : waits_) wait->stop_();
}

// The caller holds mutex_, and so for waits_.front(), which has waited longest.
bool FailureWatch::waits_long() const {
  return !waits_.empty() && std::chrono::steady_clock::now() - waits_.front()->since_ >= kLongWait;
}

// The store ends with rank 0, which may exit after its error.
void FailureWatch::let_others_look() const {
  if (rank_ == 0) std::this_thread::sleep_for(look_ + kLongWait + kTimeToRead);
}

}  // namespace zerorun
