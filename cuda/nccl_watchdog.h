// Watches the running collectives of an NCCL communicator: if a rank never joins a collective, the kernels of
// the other ranks and their streams would wait for ever. Owned by the communicator; it polls in a thread of
// its own, and any thread may call it. It does not use CUDA: a CollectiveProbe reports the state of
// collectives.
//
// A collective's timeout starts when its stream reaches it. A timeout, an error from NCCL, or ranks that have
// started different collectives (issue_history.h) break the communicator for good. The watchdog then finds
// the reason (wait_board.h) if the ranks' store answers in time (store_courier.h), aborts the running
// collectives so that streams continue, and every later use of the communicator throws that reason.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/wait_board.h"
#include "cuda/issue_history.h"
#include "cuda/store_courier.h"

namespace zerorun {

/// How the watchdog observes collectives. Each has a slot: a number from 0 on that is reused.
class CollectiveProbe {
 public:
  virtual ~CollectiveProbe() = default;
  /// Prepares for slots below `count`. Called by the thread that starts a collective, and by no other
  /// meanwhile.
  virtual void prepare(size_t count) = 0;
  /// Whether the stream has reached the collective in `slot`.
  virtual bool started(size_t slot) = 0;
  /// Whether the collective in `slot` is done.
  virtual bool finished(size_t slot) = 0;
  /// An asynchronous error, as a message; empty if none.
  virtual std::string failure() = 0;
  /// Aborts the running collectives, within seconds. Called once, by the thread that breaks the communicator.
  virtual void abort() = 0;
};

struct WatchdogOptions {
  using Clock = std::chrono::steady_clock;
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::chrono::milliseconds period = std::chrono::milliseconds(5);  // between polls while collectives run
  std::function<Clock::time_point()> now = Clock::now;
};

class NcclWatchdog {
 public:
  using Clock = WatchdogOptions::Clock;

  /// `probe` outlives it. `courier` may be null: then it does not consult other ranks.
  NcclWatchdog(WatchdogOptions options, CollectiveProbe& probe, std::unique_ptr<StoreCourier> courier);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Starts the thread, which sleeps while no collective runs.
  void start();
  /// On return the thread has ended, and the courier's too unless a call to the store blocks it.
  void stop();

  // For each collective: take() a slot, then begin(), then enqueued(). One thread at a time.

  /// Reserves a free slot.
  size_t take();
  /// `calls` are about to be enqueued together; the probe's started() is valid from now on.
  void begin(size_t slot, std::span<const CollectiveCall> calls);
  /// They are enqueued; the probe's finished() is valid from now on.
  void enqueued(size_t slot);

  /// The same for an operation that the host itself waits for: it runs from here until end().
  size_t begin_on_host(const std::string& what);
  void end(size_t slot);

  /// Breaks the communicator: the operation in `slot` has failed for `reason`.
  void fail(size_t slot, const std::string& reason);
  /// Throws CommError with the reason if the communicator is broken.
  void check() const;
  bool broken() const { return broken_; }

  /// Checks all running operations once; the thread calls it. Waits for other ranks only after a timeout.
  void poll();

 private:
  enum class State { free, begun, enqueued, on_host };
  // Records are reused, so that their strings keep their memory.
  struct Record {
    State state = State::free;
    Collective kind{};
    std::string label;
    std::string reason;
    size_t more = 0;
    int64_t numel = 0;
    std::optional<Clock::time_point> started;
    bool published = false;  // to the other ranks

    PendingCollective pending() const;
  };

  Record& begin_record(size_t slot, State state);
  void end_record(size_t slot);
  std::optional<PendingCollective> look_at_all();
  std::vector<PendingCollective> published() const;
  std::string words_of_oldest() const;
  void compare_histories();
  void explain_and_break(const PendingCollective& missed);
  void break_for(const std::string& reason);
  void run();

  const WatchdogOptions options_;
  CollectiveProbe& probe_;
  const std::unique_ptr<StoreCourier> courier_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Record> records_;  // by slot
  std::vector<size_t> free_;
  std::vector<size_t> under_way_;  // slots in the order in which they began
  bool pending_changed_ = false;   // since the last state() to the courier
  IssueHistory history_;
  Clock::time_point compared_;  // when histories were last compared
  bool stopping_ = false;
  std::string broken_for_;
  std::atomic<bool> broken_ = false;  // then broken_for_ is set and no longer changes
  std::thread thread_;
};

}  // namespace zerorun
