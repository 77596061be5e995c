// Watches what a communicator over NCCL has under way: a kernel that waits for a rank that never comes waits
// for ever, and so does its stream. Owned by the communicator; its own thread looks, any thread may ask. No
// CUDA here: what is known of a collective comes from a CollectiveProbe.
//
// The deadline of a collective runs from when its stream has come to it. A missed one, or an error that NCCL
// reports, or ranks that have started different collectives (issue_history.h), breaks the communicator for
// good: the reason is found out (testimony.h) if the others' store answers in time (store_courier.h), what is
// under way is aborted so that streams go on, and everything that is asked of the communicator from then on
// throws that reason.
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
#include "comm/testimony.h"
#include "cuda/issue_history.h"
#include "cuda/store_courier.h"

namespace zerorun {

/// What the watchdog asks about collectives, each in a slot: numbers from 0 that are used again.
class CollectiveProbe {
 public:
  virtual ~CollectiveProbe() = default;
  /// Slots below `count` will be asked about. Called by the thread that starts a collective, while nothing
  /// else is.
  virtual void prepare(size_t count) = 0;
  /// Its stream has come to the collective in `slot`.
  virtual bool started(size_t slot) = 0;
  /// And it is done.
  virtual bool finished(size_t slot) = 0;
  /// What NCCL reports by itself, in words; empty: nothing.
  virtual std::string failure() = 0;
  /// Ends what is under way, within seconds. Called once, by whichever thread finds out.
  virtual void abort() = 0;
};

struct WatchdogOptions {
  using Clock = std::chrono::steady_clock;
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::chrono::milliseconds period = std::chrono::milliseconds(5);  // between looks at what is under way
  std::function<Clock::time_point()> now = Clock::now;
};

class NcclWatchdog {
 public:
  using Clock = WatchdogOptions::Clock;

  /// `probe` outlives it. `courier` may be null: nobody else is asked then.
  NcclWatchdog(WatchdogOptions options, CollectiveProbe& probe, std::unique_ptr<StoreCourier> courier);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Starts the thread, which sleeps while nothing is under way.
  void start();
  /// When it returns, the thread has ended, and the courier's too unless the store holds on to it.
  void stop();

  // A collective: take() its slot, then begin(), then enqueued(). One thread at a time.

  /// A slot that nothing is in.
  size_t take();
  /// `calls` are about to be given to the stream together; started() may be asked.
  void begin(size_t slot, std::span<const CollectiveCall> calls);
  /// They have been; finished() may be asked.
  void enqueued(size_t slot);

  /// Likewise for what the host waits for by itself: it has started when it begins, until end().
  size_t begin_on_host(const std::string& what);
  void end(size_t slot);

  /// Breaks the communicator: `what` has failed for `reason`.
  void fail(size_t slot, const std::string& reason);
  /// Throws CommError with the reason if the communicator is broken.
  void check() const;
  bool broken() const { return broken_; }

  /// One look at everything under way: what the thread does. Waits for nobody unless a deadline is missed.
  void poll();

 private:
  enum class State { free, begun, enqueued, on_host };
  // Strings keep their memory from use to use.
  struct Record {
    State state = State::free;
    Collective kind{};
    std::string label;
    std::string reason;
    size_t more = 0;
    int64_t numel = 0;
    std::optional<Clock::time_point> started;
    bool stated = false;  // the others can read of it

    Statement statement() const;
  };

  Record& begin_record(size_t slot, State state);
  void end_record(size_t slot);
  std::optional<Statement> look_at_all();
  std::vector<Statement> stated() const;
  std::string words_of_oldest() const;
  void compare_histories();
  void explain_and_break(const Statement& missed);
  void break_for(const std::string& reason);
  void run();

  const WatchdogOptions options_;
  CollectiveProbe& probe_;
  const std::unique_ptr<StoreCourier> courier_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Record> records_;  // by slot
  std::vector<size_t> free_;
  std::vector<size_t> under_way_;   // in the order in which they began
  bool statement_changed_ = false;  // since the others were told
  IssueHistory history_;
  Clock::time_point compared_;  // histories, with the others
  bool stopping_ = false;
  std::string broken_for_;
  std::atomic<bool> broken_ = false;  // broken_for_ says why, and stays
  std::thread thread_;
};

}  // namespace zerorun
