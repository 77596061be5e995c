// The collectives of one rank that have two phases, such as a sum on the rank's host and then one over hosts.
// Each one under way has a thread, which starts the second phase as soon as the first is over: so it gets on
// while the rank computes, or waits for something else. Second phases of a kind are started in the order in
// which the collectives were started. Threads are kept for reuse. Any thread.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

using Works = std::vector<std::unique_ptr<Work>>;

/// A collective on its way, whose first phase has been started.
struct TwoPhases {
  TwoPhases(Collective of_kind, Works works) : kind(of_kind), first(std::move(works)) {}
  virtual ~TwoPhases() = default;
  /// Starts the second phase and returns its works.
  virtual Works start_second() = 0;
  /// Called when both phases are over.
  virtual void finish() = 0;
  /// Called instead if something has failed.
  virtual void fail(const std::string& error) noexcept = 0;

  const Collective kind;
  Works first;

  // Guarded by the relay's mutex.
  bool is_wanted = false;    // a thread waits for it
  bool is_given_up = false;  // the deadline of that thread has passed
  bool is_over = false;
  std::string error = {};   // why it has ended, if it is not over
  Work* awaited = nullptr;  // the work that its thread waits for patiently
};

class Relay {
 public:
  /// `look_for_failure`: returns the text that a rank of another host has announced, or an empty one. Called
  /// about once a second by a thread that waits.
  Relay(std::chrono::milliseconds timeout, std::function<std::string()> look_for_failure);
  /// Waits a while for collectives that nobody waits for, because other ranks may; then gives them up.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void add(std::shared_ptr<TwoPhases> collective);
  /// Returns when both phases are over. Throws CommError.
  void wait(const std::shared_ptr<TwoPhases>& collective);
  /// Returns when the second phases of all collectives have been started, or one has failed.
  void drain();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Queue = std::deque<std::shared_ptr<TwoPhases>>;

  void run();
  void carry(TwoPhases& collective);
  void finish(Works& works, TwoPhases& collective);
  void poll(Work& work, const TwoPhases& collective);
  void await_turn(const TwoPhases& collective);
  void end(TwoPhases& collective, std::string error);
  template <typename Action>
  void for_each_until(TwoPhases& last, const Action& action);
  Queue& queue_of(const TwoPhases& collective) { return queues_[static_cast<size_t>(collective.kind)]; }

  const std::chrono::milliseconds timeout_;
  const std::function<std::string()> look_for_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, kCollectiveKinds> queues_;  // by kind: those whose second phase has not been started
  Queue inbox_;                                 // those that no thread carries yet
  std::vector<std::shared_ptr<TwoPhases>> carried_;
  size_t idle_ = 0;      // threads that carry nothing
  std::string failure_;  // of the first one that failed: all later ones fail with it
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace zerorun
