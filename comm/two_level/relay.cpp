#include "comm/two_level/relay.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

// How long the thread sleeps between two looks at a first phase that nobody waits for yet: short beside the
// time that a bucket takes between hosts.
constexpr std::chrono::microseconds kLook(200);

void wait_for(Works& works) {
  for (const auto& work : works) work->wait();
  works.clear();
}

}  // namespace

Relay::~Relay() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Relay::add(std::shared_ptr<TwoPhases> collective) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(collective));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void Relay::wait(const std::shared_ptr<TwoPhases>& collective) {
  {
    std::unique_lock lock(mutex_);
    const auto place = std::ranges::find(queue_, collective);
    for (auto earlier = queue_.begin(); place != queue_.end() && earlier <= place; ++earlier)
      (*earlier)->is_wanted = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return collective->is_second || !collective->error.empty(); });
    if (!collective->error.empty()) throw CommError(collective->error);
  }
  wait_for(collective->second);
}

// Looks at a first phase that nobody waits for, so that the thread can end at any time. One that is wanted
// has a waiting thread, which keeps this object.
void Relay::run() {
  ::pthread_setname_np(::pthread_self(), "between hosts");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (queue_.empty()) {
      changed_.wait(lock);
    } else if (queue_.front()->is_wanted || !failure_.empty() || is_first_over(lock)) {
      pass_on(lock);
    } else {
      changed_.wait_for(lock, kLook);
    }
  }
}

// Without the lock, since a look does this rank's part.
bool Relay::is_first_over(std::unique_lock<std::mutex>& lock) {
  const Works& works = queue_.front()->first;
  lock.unlock();
  const bool over = std::ranges::all_of(works, [](const auto& work) { return work->is_over(); });
  lock.lock();
  return over;
}

void Relay::pass_on(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<TwoPhases> collective = queue_.front();
  std::string error = failure_;
  Works second;
  lock.unlock();
  try {
    if (error.empty()) {
      wait_for(collective->first);
      second = collective->start_second();
    }
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  lock.lock();
  queue_.pop_front();
  failure_ = error;
  collective->second = std::move(second);
  collective->is_second = error.empty();
  collective->error = std::move(error);
  changed_.notify_all();
}

}  // namespace zerorun
