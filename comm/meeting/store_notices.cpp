#include "comm/meeting/store_notices.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace zerorun {
namespace {

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

std::unique_ptr<Notices> make_notices(const StorePointer& store, int board) {
  return std::make_unique<StoreNotices>(store->part("notices " + std::to_string(board)));
}

}  // namespace zerorun
