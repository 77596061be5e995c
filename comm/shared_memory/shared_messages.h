// The messages between one rank and the others of a group. A send copies its values into the rank's arena,
// from where the receiver copies them into its tensor whenever it does its part. Part of the rank's transfers
// in that group (shared_transfers.h). Any thread, but only one at a time may call send() and receive().
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/shared_memory/arena_scratch.h"
#include "comm/shared_memory/message_block.h"

namespace zerorun {

class RankTransfers;

class SharedMessages {
 public:
  /// A receive, from its call until it has its message.
  struct Receipt {
    MessageCall call;
    bool done = false;
  };

  /// `memory` is the group's MessageBlock, `ranks` are those of the group as numbers in the job, and `rank`
  /// is this rank's index in them. `all` outlives this object.
  SharedMessages(RankTransfers& all, uint64_t group, int rank, const std::vector<int>& ranks, char* memory,
                 std::chrono::milliseconds timeout);

  /// Copies the tensor. If there is no room, waits for it. Throws CommError.
  void send(const MessageCall& call);
  std::shared_ptr<Receipt> receive(MessageCall call);
  /// Returns when the tensor has the message. Throws CommError.
  void wait(Receipt& receipt);
  /// Throws CommError if this rank and `other` disagree on a message.
  void check(int other);

  // The caller of these functions holds the mutex of RankTransfers.

  /// Receives what has been sent, and frees what has been received. Returns whether a receive is done since.
  bool advance();
  /// Whether no message is on the way and no receive waits for one.
  bool is_idle() const;
  /// The disagreement between this rank and any other one; empty if there is none.
  std::string disagreement() const;
  /// Whether the wait of another rank needs a message that this rank has not sent, or not begun to receive.
  bool is_awaited(const MessageWait& theirs) const;

 private:
  struct Sent {
    uint64_t number;
    int64_t bytes;
    ArenaScratch::Block block;  // if there are bytes
  };
  // The messages between this rank and another one.
  struct Peer {
    std::deque<Sent> sent;  // and not known to be received
    int64_t bytes = 0;      // of `sent`
    std::deque<std::shared_ptr<Receipt>> expected;
  };

  void throw_if(const std::string& error) const;
  bool has_room_for(const MessageCall& call) const;
  bool advance_receives(int other);
  void free_received(int other);
  void take(const MessageCall& call, const MessageBlock::Posted& message) const;
  std::string disagreement(int other) const;
  std::string wait_for(const MessageCall& call, const std::function<bool()>& reached) const;
  std::string error_of_other(const MessageCall& call, const std::function<bool()>& reached,
                             const Deadline& deadline) const;
  std::string standstill(const MessageCall& call) const;
  int in_job(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  RankTransfers& all_;
  const uint64_t group_;
  const int rank_;
  const std::vector<int> ranks_;
  MessageBlock block_;
  const std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace zerorun
