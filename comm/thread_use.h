// Notices that several threads use an object. Any thread.
#pragma once

#include <atomic>
#include <thread>

namespace zerorun {

class ThreadUse {
 public:
  /// Call this at each use. Returns true if the calling thread is not the first one that has used the object.
  bool is_another() {
    const std::thread::id own = std::this_thread::get_id();
    std::thread::id first = first_.load();
    if (first == own) return false;
    return first != std::thread::id() || !first_.compare_exchange_strong(first, own);
  }

 private:
  std::atomic<std::thread::id> first_{};
};

}  // namespace zerorun
