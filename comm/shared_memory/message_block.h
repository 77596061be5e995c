// The messages on the way between the ranks of a group on one host, in memory that they share.
//
// Each ordered pair of ranks has a ring of kMostMessages slots and two counters. The sender writes the slot
// of its next message and counts it as sent; the receiver copies the message and counts it as received. If
// the two ranks disagree on a message, the receiver leaves the error there for the sender.
//
// Owned by the group's messages. Thread-safe, but only one thread of a rank at a time may write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/message.h"
#include "comm/shared_memory/rank_board.h"

namespace zerorun {

class MessageBlock {
 public:
  /// A message in its slot.
  struct Posted {
    int64_t numel = 0;
    int64_t offset = 0;  // bytes from the start of the sender's arena to the values
    uint64_t label_hash = 0;
    int32_t dtype = 0;
  };

  static size_t bytes(int world_size);
  /// `memory` has bytes(ranks.size()) bytes, zeros before the first rank uses them. `rank`: this rank's index
  /// in `ranks`, which are the group's ranks as numbers on `board`. The memory and the board outlive this
  /// object.
  MessageBlock(char* memory, int rank, std::vector<int> ranks, RankBoard& board)
      : memory_(memory), rank_(rank), ranks_(std::move(ranks)), board_(&board) {}

  // Ranks are indices in the group.

  /// Adds the next message from this rank to `receiver`. Its slot must be free.
  void send(int receiver, const Posted& message, std::string_view label);
  uint64_t count_sent(int sender, int receiver) const;
  /// Message `number`, counted from 1, from `sender` to this rank. It has been sent and not yet received.
  const Posted& posted(int sender, uint64_t number) const;
  std::string label(int sender, uint64_t number) const;

  /// Counts the next message from `sender` to this rank as received: its slot and values may be reused.
  void receive(int sender);
  uint64_t count_received(int sender, int receiver) const;

  /// Records that this rank does not take the next message from `sender`, and why.
  void refuse(int sender, std::string_view error);
  /// The error from refuse(); empty if there is none.
  std::string refusal(int sender, int receiver) const;

 private:
  struct Slot;
  struct Pair;

  Pair& pair(int sender, int receiver) const;

  char* memory_;
  int rank_;
  std::vector<int> ranks_;
  RankBoard* board_;
};

}  // namespace zerorun
