#include "comm/notices.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/meeting/job_store.h"

namespace zerorun {
namespace {

class ThreadNotices : public Notices {
 public:
  ThreadNotices(std::shared_ptr<NoticesInMemory> texts, int board)
      : texts_(std::move(texts)), prefix_(std::to_string(board) + "/") {}

  void post(const std::string& name, const std::string& text, const Deadline&) override {
    texts_->post(prefix_ + name, text);
  }
  std::optional<std::string> await(const std::string& name, const Deadline& deadline) override {
    return texts_->await(prefix_ + name, deadline);
  }
  void remove(const std::string& name, const Deadline&) override { texts_->remove(prefix_ + name); }

 private:
  std::shared_ptr<NoticesInMemory> texts_;
  std::string prefix_;
};

class StoreNotices : public Notices {
 public:
  explicit StoreNotices(StorePointer store) : store_(std::move(store)) {}

  void post(const std::string& name, const std::string& text, const Deadline& deadline) override {
    store_->set(name, text, deadline);
  }

  // Polls, because a blocking JobStore::await() would block other callers of the connection, and c10d logs a
  // warning for each wait that times out.
  std::optional<std::string> await(const std::string& name, const Deadline& deadline) override {
    constexpr std::chrono::microseconds kLongestPause(10'000);
    for (std::chrono::microseconds pause(250);; pause = std::min(2 * pause, kLongestPause)) {
      if (auto text = store_->find(name, Deadline(kTimeToAnswer))) return text;
      if (Deadline::Clock::now() >= deadline.end()) return std::nullopt;
      std::this_thread::sleep_for(std::min<std::chrono::microseconds>(pause, deadline.remaining()));
    }
  }

  void remove(const std::string& name, const Deadline& deadline) override { store_->remove(name, deadline); }

 private:
  StorePointer store_;
};

}  // namespace

void NoticesInMemory::post(const std::string& name, const std::string& text) {
  const std::lock_guard lock(mutex_);
  texts_[name] = text;
  changed_.notify_all();
}

std::optional<std::string> NoticesInMemory::await(const std::string& name, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.end(), [&] { return texts_.contains(name); })) return std::nullopt;
  return texts_[name];
}

void NoticesInMemory::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  texts_.erase(name);
}

std::unique_ptr<Notices> make_notices(std::shared_ptr<NoticesInMemory> texts, int board) {
  return std::make_unique<ThreadNotices>(std::move(texts), board);
}

std::unique_ptr<Notices> make_notices(const StorePointer& store, int board) {
  return std::make_unique<StoreNotices>(store->part("notices " + std::to_string(board)));
}

}  // namespace zerorun
