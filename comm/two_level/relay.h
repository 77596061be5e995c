// The collectives of one rank that have two phases, such as a sum on the rank's host and then one over hosts.
// A thread starts the second phase of each as soon as its first phase is over, in the order in which they
// were started: so all ranks start the second phases in the same order, whatever they wait for, and while
// they compute. Any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

using Works = std::vector<std::unique_ptr<Work>>;

/// A collective on its way, whose first phase has been started.
struct TwoPhases {
  virtual ~TwoPhases() = default;
  /// Starts the second phase and returns its works. Called by the relay's thread.
  virtual Works start_second() = 0;

  Works first = {};

  // Guarded by the relay's mutex.
  bool is_wanted = false;  // a thread waits for it
  bool is_second = false;  // the second phase has been started
  std::string error = {};  // why it was not
  Works second = {};
};

class Relay {
 public:
  Relay() = default;
  /// Ends the thread, which waits for no collective that no other thread waits for.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void add(std::shared_ptr<TwoPhases> collective);
  /// Returns when both phases are over. Each phase has the deadline of its works. Throws CommError.
  void wait(const std::shared_ptr<TwoPhases>& collective);

 private:
  void run();
  bool is_first_over(std::unique_lock<std::mutex>& lock);
  void pass_on(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<TwoPhases>> queue_;  // those whose second phase has not been started
  std::string failure_;                           // of the first one that failed; later ones fail with it
  bool ends_ = false;
  std::thread thread_;  // starts with the first collective
};

}  // namespace zerorun
