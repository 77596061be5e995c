// Reports ranks that wait for different collectives before their deadline, for a transport over which a rank
// cannot see what the other ranks do. A thread looks twice a second (less often if there are many ranks) at a
// wait that has lasted for a second. It publishes the wait in the ranks' store and reads the wait of one
// other rank, in three requests. Owned by the communicator. Any thread.
//
// Nothing is reported once several threads of a rank use the communicator: while one waits, another may start
// what the other ranks wait for. A thread is known from the first collective that it starts or waits for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/meeting/job_store.h"
#include "comm/meeting/wait_board.h"
#include "comm/thread_use.h"

namespace zerorun {

class OrderWatch {
 public:
  /// `ranks`: those of the group as numbers in the job, which messages name. `rank`: this rank's index in
  /// them.
  OrderWatch(StorePointer store, int rank, std::vector<int> ranks);
  ~OrderWatch();

  /// Call this when this rank starts a collective. Returns its number within its kind, counted from 0.
  uint64_t count(Collective kind);

  /// This rank waits for a collective while this object exists.
  class Wait {
   public:
    /// `number` is from count(). `stop` is called in the watch's thread if the ranks disagree; it must make
    /// the wait end. `call` and what `stop` uses must outlive this object.
    Wait(OrderWatch& watch, const CollectiveCall& call, uint64_t number, std::function<void()> stop);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    /// The error if ranks disagree, else empty.
    std::string disagreement() const;

   private:
    friend class OrderWatch;
    OrderWatch* watch_;
    const CollectiveCall* call_;
    uint64_t number_;
    std::function<void()> stop_;
    std::string disagreement_;
  };

  /// A wait as a rank publishes it.
  struct Statement {
    int rank = 0;       // this and the root: as numbers in the job
    uint64_t beat = 0;  // increases with each publication
    Collective kind = Collective::barrier;
    uint64_t number = 0;
    int root = 0;
    std::array<uint64_t, kCollectiveKinds> started{};  // number of collectives of each kind
    PendingCollective pending = {};
  };

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  Statement statement(uint64_t beat) const;
  /// Returns whether the store has answered.
  bool publish(const Statement& own) const;
  std::optional<Statement> read(int rank) const;

  StorePointer store_;
  const size_t rank_;
  const std::vector<int> ranks_;
  const std::chrono::milliseconds look_;
  std::array<std::atomic<uint64_t>, kCollectiveKinds> started_{};
  ThreadUse threads_;
  std::atomic<bool> is_threaded_ = false;  // several threads have used the communicator

  std::mutex mutex_;
  std::condition_variable over_or_due_;
  bool is_over_ = false;
  Wait* wait_ = nullptr;
  Clock::time_point since_;  // when `wait_` began
  uint64_t waits_ = 0;       // number of waits so far
  std::thread worker_;
};

/// Whether two ranks that wait as they have published wait for each other for ever, if only one thread of
/// each uses the communicator: each lacks what the other has not started.
bool wait_for_each_other(const OrderWatch::Statement& mine, const OrderWatch::Statement& theirs);

}  // namespace zerorun
