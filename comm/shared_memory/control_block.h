// The progress of a group of ranks of one host, in memory that they share. Each rank writes its own part and
// reads the others'.
//
// Every rank has a ring of slots for each kind of collective. For collective number n of that kind the rank
// posts its part in slot n % kSlots, and marks the slot finished when it has read everything that it needs
// from other ranks. Each rank sleeps on its own bell (rank_board.h). Only the last rank to post or finish
// wakes the ranks that sleep. So a rank is woken once, and not by every other rank.
//
// Owned by the group's transfers. Thread-safe, but only one thread at a time may post.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared_memory/rank_board.h"

namespace zerorun {

/// A rank's part of a collective. Other ranks compare all fields except `offset` with their own.
struct Posting {
  int64_t numel = 0;
  int64_t offset = 0;  // bytes from the start of the rank's arena to the input that other ranks read
  uint64_t label_hash = 0;
  int32_t dtype = 0;
  int32_t root = 0;
  int32_t in_place = 0;  // 1 if the data is already in memory that all ranks share
};

class ControlBlock {
 public:
  /// The number of collectives of one kind that may be in flight. The next collective must wait for a free
  /// slot.
  static constexpr uint64_t kSlots = 128;

  static size_t bytes(int world_size);
  /// `memory` has bytes(ranks.size()) bytes, zeros before the first rank uses them. `rank`: this rank's index
  /// in `ranks`, which are the group's ranks as numbers on `board`. The memory and the board outlive this
  /// object.
  ControlBlock(char* memory, int rank, std::vector<int> ranks, RankBoard& board)
      : memory_(memory), rank_(rank), ranks_(std::move(ranks)), board_(&board) {}

  /// The slot must be free: all ranks have finished collective `which.number` - kSlots of this kind.
  void post(Numbered which, const Posting& posting, std::string_view label, std::string_view reason);
  bool has_posted(int rank, Numbered which) const;
  /// Returns the post of `rank`, which must have posted. The reference is valid until this rank finishes.
  const Posting& posting(int rank, Numbered which) const;

  /// Marks that this rank has read everything that it needs from the other ranks.
  void finish(Numbered which);
  bool has_finished(int rank, Numbered which) const;

  /// The description of a rank's collective, for messages; "?" if the slot has been reused.
  std::string words(int rank, Numbered which) const;

 private:
  struct Slot;

  Slot& slot(int rank, Numbered which) const;
  void ring_all();

  char* memory_;
  int rank_;
  std::vector<int> ranks_;
  RankBoard* board_;
};

}  // namespace zerorun
