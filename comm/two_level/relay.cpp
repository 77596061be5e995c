#include "comm/two_level/relay.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// How long a thread sleeps between two looks at a work that nobody waits for yet: short beside the time that
// a bucket takes between hosts.
constexpr std::chrono::microseconds kPauseOfPolls(200);
// How often a thread that waits looks for failures on other hosts.
constexpr milliseconds kPauseOfWaits(1000);
// How long the destructor waits for collectives that nobody waits for, as those of single levels do.
constexpr milliseconds kPatienceWithUnwanted(10'000);

}  // namespace

Relay::Relay(milliseconds timeout, std::function<std::string()> look_for_failure)
    : timeout_(timeout), look_for_failure_(std::move(look_for_failure)) {}

Relay::~Relay() {
  {
    Lock lock(mutex_);
    changed_.wait_for(lock, std::min(timeout_, kPatienceWithUnwanted),
                      [&] { return (carried_.empty() && inbox_.empty()) || !failure_.empty(); });
    ends_ = true;
    for (const auto& collective : carried_) {
      if (collective->awaited != nullptr) collective->awaited->give_up();
    }
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Relay::add(std::shared_ptr<TwoPhases> collective) {
  {
    const Lock lock(mutex_);
    queue_of(*collective).push_back(collective);
    inbox_.push_back(std::move(collective));
    if (idle_ < inbox_.size()) {
      threads_.emplace_back([this] { run(); });
      ++idle_;
    }
  }
  changed_.notify_all();
}

void Relay::wait(const std::shared_ptr<TwoPhases>& collective) {
  Lock lock(mutex_);
  const auto is_done = [&] { return collective->is_over || !collective->error.empty(); };
  for_each_until(*collective, [](TwoPhases& one) { one.is_wanted = true; });
  changed_.notify_all();
  const Deadline deadline(timeout_);
  while (!is_done() && Deadline::Clock::now() < deadline.end()) {
    if (changed_.wait_for(lock, std::min(kPauseOfWaits, deadline.remaining()), is_done)) break;
    lock.unlock();
    std::string failure = look_for_failure_();
    lock.lock();
    if (failure.empty() || is_done()) continue;
    if (failure_.empty()) failure_ = failure;
    throw CommError(failure);
  }
  if (!is_done()) {
    // The waits that this ends name the ranks that are missing.
    for_each_until(*collective, [](TwoPhases& one) {
      one.is_given_up = true;
      if (one.awaited != nullptr) one.awaited->give_up();
    });
    changed_.notify_all();
    changed_.wait(lock, is_done);  // a wait on the host has a deadline of its own
  }
  if (!collective->error.empty()) throw CommError(collective->error);
}

void Relay::drain() {
  Lock lock(mutex_);
  const bool done = changed_.wait_for(lock, timeout_, [&] {
    return !failure_.empty() ||
           std::ranges::all_of(queues_, [](const Queue& queue) { return queue.empty(); });
  });
  if (!failure_.empty()) throw CommError(failure_);
  if (!done) throw CommError("splitting the ranks: earlier collectives have not come to an end");
}

// Calls `action` for `last` and for earlier ones of its kind, which its second phase waits for.
template <typename Action>
void Relay::for_each_until(TwoPhases& last, const Action& action) {
  const Queue& queue = queue_of(last);
  const auto place = std::ranges::find(queue, &last, [](const auto& one) { return one.get(); });
  for (auto one = queue.begin(); place != queue.end() && one != place; ++one) action(**one);
  action(last);
}

void Relay::run() {
  ::pthread_setname_np(::pthread_self(), "between hosts");
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !inbox_.empty(); });
    if (ends_) return;
    const std::shared_ptr<TwoPhases> collective = inbox_.front();
    inbox_.pop_front();
    carried_.push_back(collective);
    --idle_;
    lock.unlock();
    std::string error;
    try {
      carry(*collective);
    } catch (const std::exception& failure) {
      error = failure.what();
      collective->fail(error);
    }
    collective->first.clear();  // without the lock: the end of a work may take its time
    lock.lock();
    end(*collective, std::move(error));
    ++idle_;
  }
}

void Relay::carry(TwoPhases& collective) {
  {
    const Lock lock(mutex_);
    if (!failure_.empty()) throw CommError(failure_);
  }
  finish(collective.first, collective);
  await_turn(collective);
  Works second = collective.start_second();
  {
    const Lock lock(mutex_);
    queue_of(collective).pop_front();
  }
  changed_.notify_all();
  finish(second, collective);
  collective.finish();
}

void Relay::finish(Works& works, TwoPhases& collective) {
  for (const auto& work : works) {
    if (!work->waits_patiently()) {
      poll(*work, collective);
      work->wait();
      continue;
    }
    {
      const Lock lock(mutex_);
      collective.awaited = work.get();
      if (collective.is_given_up || ends_) work->give_up();
    }
    try {
      work->wait_patiently();
    } catch (...) {
      const Lock lock(mutex_);
      collective.awaited = nullptr;
      throw;
    }
    const Lock lock(mutex_);
    collective.awaited = nullptr;
  }
  works.clear();
}

// Returns when the work is over or wanted. Looks without the lock, since a look does this rank's part.
void Relay::poll(Work& work, const TwoPhases& collective) {
  Lock lock(mutex_);
  while (!collective.is_wanted) {
    if (ends_) throw CommError("the communicator has ended");
    lock.unlock();
    const bool over = work.is_over();
    lock.lock();
    if (over) return;
    changed_.wait_for(lock, kPauseOfPolls);
  }
}

void Relay::await_turn(const TwoPhases& collective) {
  Lock lock(mutex_);
  changed_.wait(
      lock, [&] { return queue_of(collective).front().get() == &collective || !failure_.empty() || ends_; });
  if (!failure_.empty()) throw CommError(failure_);
  if (queue_of(collective).front().get() != &collective) throw CommError("the communicator has ended");
}

void Relay::end(TwoPhases& collective, std::string error) {
  std::erase_if(queue_of(collective), [&](const auto& one) { return one.get() == &collective; });
  std::erase_if(carried_, [&](const auto& one) { return one.get() == &collective; });
  if (failure_.empty()) failure_ = error;
  collective.is_over = error.empty();
  collective.error = std::move(error);
  changed_.notify_all();
}

}  // namespace zerorun
