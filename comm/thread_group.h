// What the ranks of a group share if they are threads of one process: collectives, messages, and what each
// rank waits for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/notices.h"
#include "comm/thread_messages.h"

namespace zerorun {

/// What a rank of the job has announced, for all groups of ranks.
class Announcement {
 public:
  /// Only the first one stays.
  void make(int rank, const std::string& error);
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

class ThreadGroup {
 public:
  /// One collective. Every rank adds its call, and the last rank to arrive moves the data for all ranks.
  struct Meeting {
    explicit Meeting(int world_size) : calls(world_size), arrived(world_size) {}

    std::vector<CollectiveCall> calls;
    std::vector<char> arrived;
    bool done = false;
    bool agreed = false;  // set before `done`: all calls are alike
  };

  /// `ranks`: as numbers in the job.
  ThreadGroup(std::vector<int> ranks, std::shared_ptr<Announcement> announcement);

  const std::shared_ptr<NoticesInMemory>& notices() const { return notices_; }
  const std::shared_ptr<Announcement>& announcement() const { return announcement_; }

  /// Adds the rank's call to its meeting, which the call's kind and `number` identify.
  std::shared_ptr<Meeting> arrive(int64_t number, int rank, const CollectiveCall& call);
  bool is_over(const Meeting& meeting);
  /// Waits for the end of the collective, and lets go of the rank's tensors. Throws if the calls of the ranks
  /// are not alike, or some rank has not arrived by the deadline.
  void complete(Meeting& meeting, int rank, const Deadline& deadline);

  /// Delivers the message, of which it makes a copy. If there is no room, waits for it.
  void send(MessageCall call, const Deadline& deadline);
  std::shared_ptr<ThreadMessages::Receipt> receive(MessageCall call);
  void await(const ThreadMessages::Receipt& receipt, const Deadline& deadline);
  /// Throws if a message between the two ranks has a disagreement.
  void check_messages(int rank, int other);

 private:
  static std::vector<int> absent(const Meeting& meeting);
  void await(const Meeting& meeting, int rank, const Deadline& deadline);
  /// Returns false if the deadline has passed. The words of a failed wait stay in waiting_.
  template <typename Condition>
  bool await(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, const Deadline& deadline,
             Condition done);
  template <typename Condition>
  void await_message(std::unique_lock<std::mutex>& lock, const MessageCall& call, const Deadline& deadline,
                     Condition done);

  const std::shared_ptr<Announcement> announcement_;
  const std::vector<int> ranks_;  // their numbers in the whole job
  const int world_size_;
  const std::shared_ptr<NoticesInMemory> notices_ = std::make_shared<NoticesInMemory>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> waiting_;  // by rank: what the rank waits for, or the wait that failed
  std::map<std::pair<Collective, int64_t>, std::shared_ptr<Meeting>> meetings_;
  ThreadMessages messages_;
};

}  // namespace zerorun
