// Ends this rank's waits over Gloo, in all groups of the job, when a rank has announced that it cannot go on.
// Gloo shows a rank only whether those that it waits for are still connected. So a thread asks the ranks'
// store twice a second (less often if there are many ranks), and only while a wait has lasted for half a
// second. Owned by the communicators of a job. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "comm/meeting/job_store.h"

namespace zerorun {

class FailureWatch {
 public:
  /// `rank`: in the job, which has `world_size` ranks. `store`: the same part of it on all of them.
  FailureWatch(StorePointer store, int rank, int world_size);
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  /// Announces that this rank cannot go on, unless a rank has announced that before. Takes at most 0.5 s,
  /// plus kTimeToAnswer if the store does not answer. Rank 0, which keeps the store, then waits until the
  /// other ranks have had the time to look. Never throws.
  void announce(const std::string& error) noexcept;
  /// Returns "rank 3 cannot go on: ..." if this rank knows of an announcement, else an empty text.
  std::string announced() const;
  /// Likewise, for a wait that has failed: asks the store too. Takes as long as announce(). Never throws.
  std::string find() noexcept;

  /// This rank waits while this object exists.
  class Wait {
   public:
    /// `stop` must make the wait end. It is called once a rank has announced a failure, in the watch's thread
    /// or here. What it uses must outlive this object.
    Wait(FailureWatch& watch, std::function<void()> stop);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    friend class FailureWatch;
    FailureWatch& watch_;
    std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
    std::function<void()> stop_;
    std::list<Wait*>::iterator place_;
  };

 private:
  void run();
  std::string read() const;
  void learn(const std::string& text);
  bool waits_long() const;
  void let_others_look() const;

  StorePointer store_;
  const int rank_;
  const std::chrono::milliseconds look_;

  mutable std::mutex mutex_;
  std::condition_variable over_or_due_;
  bool is_over_ = false;
  std::string announced_;
  std::list<Wait*> waits_;
  std::thread worker_;
};

}  // namespace zerorun
