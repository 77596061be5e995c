// Watches the running collectives of an NCCL communicator. If a rank never joins a collective, the other
// ranks' kernels and streams would otherwise wait for ever. Owned by the communicator. Polls in its own
// thread; any thread may call it. Uses no CUDA: a CollectiveProbe reports the state of collectives.
//
// A collective's timeout starts when its stream reaches it. The communicator becomes permanently broken after
// a timeout, after an error from NCCL, or if ranks have started different collectives (cuda/issue_history.h).
// The watchdog then finds the reason (comm/meeting/wait_board.h) if the ranks' store answers in time, aborts
// the running collectives so that streams continue, and makes every later use of the communicator throw the
// reason.
//
// A question to the GPU may itself hang, if another thread hangs in a call to the driver. The watchdog asks
// without its lock, so that no thread of the program waits for the answer, and a second thread, which never
// asks, breaks the communicator if no answer comes within the timeout.
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
#include "comm/meeting/wait_board.h"
#include "cuda/issue_history.h"
#include "cuda/store_courier.h"

namespace zerorun {

/// Reports the state of collectives to the watchdog. Each collective has a slot, a number that is reused.
class CollectiveProbe {
 public:
  virtual ~CollectiveProbe() = default;
  /// Called once by the watchdog's thread, before its first question.
  virtual void enter_thread() {}
  /// Prepares for all slots below `count`. Called by the thread that starts a collective, one thread at a
  /// time.
  virtual void prepare(size_t count) = 0;
  /// Whether the stream has reached the collective in `slot`.
  virtual bool started(size_t slot) = 0;
  /// Whether the collective in `slot` has finished.
  virtual bool finished(size_t slot) = 0;
  /// Returns an asynchronous error as a message; empty if there is none.
  virtual std::string failure() = 0;
  /// Aborts the running collectives, within seconds. Called once, by the thread that breaks the communicator.
  virtual void abort() = 0;
};

struct WatchdogOptions {
  using Clock = std::chrono::steady_clock;
  int rank = 0;
  int world_size = 1;
  std::vector<int> ranks = {};  // by rank: its number in the job, for messages; empty: the same
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::chrono::milliseconds period = std::chrono::milliseconds(5);  // between polls while collectives run
  std::function<Clock::time_point()> now = Clock::now;

  int in_job(int of) const { return ranks.empty() ? of : ranks[static_cast<size_t>(of)]; }
};

class NcclWatchdog {
 public:
  using Clock = WatchdogOptions::Clock;

  /// `probe` must outlive the watchdog. If `courier` is null, the watchdog does not communicate with other
  /// ranks.
  NcclWatchdog(WatchdogOptions options, CollectiveProbe& probe, std::unique_ptr<StoreCourier> courier);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Starts the watchdog's threads, which sleep while no collective runs.
  void start();
  /// When it returns, the watchdog's threads have ended. The courier's thread has ended too, unless a call to
  /// the store blocks it.
  void stop();

  // To be called in this order for each collective: take(), begin(), enqueued(). One thread at a time.

  /// Reserves a free slot.
  size_t take();
  /// Call it before `calls` are enqueued together. From now on the probe's started() must be valid for
  /// `slot`. Collectives with the same `lane`, which is a stream, run one after the other.
  void begin(size_t slot, std::span<const CollectiveCall> calls, const void* lane);
  /// Likewise for the receive of a message, which `what` describes.
  void begin(size_t slot, const std::string& what, const void* lane);
  /// Call it after the calls are enqueued. From now on the probe's finished() must be valid for `slot`.
  void enqueued(size_t slot);

  /// Starts an operation for which the host itself waits. Its timeout starts now, and it runs until end().
  size_t begin_on_host(const std::string& what);
  void end(size_t slot);

  /// Breaks the communicator because the operation in `slot` has failed for `reason`.
  void fail(size_t slot, const std::string& reason);
  /// Throws CommError with the reason if the communicator is broken.
  void check() const;
  bool broken() const { return broken_; }

  /// Checks all running operations once. Called by the watchdog's thread. Waits for the store only after a
  /// timeout.
  void poll();
  /// Breaks the communicator if poll() has been waiting for the GPU's answer for longer than the timeout.
  /// Called by the second thread.
  void check_poll();

 private:
  enum class State { free, begun, enqueued, on_host };
  // Records are reused to avoid allocating their strings again.
  struct Record {
    State state = State::free;
    const void* lane = nullptr;
    Collective kind{};
    bool is_collective = false;  // otherwise `label` describes it
    std::string label;
    std::string reason;
    size_t more = 0;
    int64_t numel = 0;
    std::optional<Clock::time_point> started;
    bool published = false;  // whether the other ranks can read this collective in the store

    PendingCollective pending() const;
  };

  struct Question {
    size_t slot;
    bool started;   // whether the answer to started() is known to be true
    bool enqueued;  // whether finished() may be asked
  };

  Record& begin_record(size_t slot, State state);
  void end_record(size_t slot);
  void ask_lanes();
  std::optional<Question> next_question();
  void note_answer(const Question& question, bool finished, bool started);
  std::optional<PendingCollective> look_at_clock();
  std::vector<PendingCollective> published() const;
  std::string words_of_oldest() const;
  void compare_histories();
  void explain_and_break(const PendingCollective& missed);
  void break_for(const std::string& reason);
  void abort();
  void run(void (NcclWatchdog::*body)());
  void watch();
  void watch_poll();

  const WatchdogOptions options_;
  CollectiveProbe& probe_;
  const std::unique_ptr<StoreCourier> courier_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable wake_second_;
  std::vector<Record> records_;  // by slot
  std::vector<size_t> free_;
  std::vector<size_t> under_way_;  // slots in the order of begin()
  bool pending_changed_ = false;   // published collectives have changed since the last publish()
  IssueHistory history_;
  Clock::time_point compared_;  // time of the last comparison of histories
  bool stopping_ = false;
  bool thread_ended_ = false;
  std::string broken_for_;
  std::atomic<bool> broken_ = false;               // once true, broken_for_ is set and no longer changes
  std::optional<Clock::time_point> asking_since_;  // set while poll() waits for answers of the probe
  std::vector<const void*> asked_;                 // lanes, used only by poll()
  std::thread thread_;
  std::thread second_thread_;
};

}  // namespace zerorun
