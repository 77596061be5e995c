// The messages between ranks that are threads. The caller holds the lock of the group of ranks, which guards
// all of it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/message.h"

namespace zerorun {

class ThreadMessages {
 public:
  /// A receive, from its call until it has its message.
  struct Receipt {
    MessageCall call;
    bool done = false;
  };

  /// `ranks`: as numbers in the job, for messages.
  explicit ThreadMessages(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  /// Whether there is room for `send`, or none is needed.
  bool has_room_for(const MessageCall& send) const;
  /// Delivers `send`, whose tensor must not be written any more.
  void post(MessageCall send);
  /// Receives the message if it has been sent, and else when it is.
  std::shared_ptr<Receipt> expect(MessageCall receive);
  /// The disagreement between a send and its receive of `rank` and `other`, in either direction; empty if
  /// there is none.
  std::string disagreement(int rank, int other) const;
  /// Likewise of `rank` and any other rank.
  std::string disagreement(int rank) const;

 private:
  struct Pair {
    std::deque<MessageCall> sent;  // of these two lists one is empty
    std::deque<std::shared_ptr<Receipt>> expected;
    int64_t bytes = 0;  // of `sent`
    std::string disagreement;
  };

  void deliver(Pair& pair, const MessageCall& send, Receipt& receipt) const;

  std::vector<int> ranks_;
  std::map<std::pair<int, int>, Pair> pairs_;  // by sender and receiver
};

}  // namespace zerorun
