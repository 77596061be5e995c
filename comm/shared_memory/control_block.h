// The progress of the ranks of one host, in a shared segment. Each rank writes its own part and reads the
// others'.
//
// Every rank has a ring of slots for each kind of collective. For collective number n of that kind the rank
// posts its part in slot n % kSlots, and marks the slot finished when it has read everything that it needs
// from other ranks. Each rank sleeps on its own futex word (its bell). Only the last rank to post or finish
// wakes the ranks that sleep. So a rank is woken once, and not by every other rank.
//
// Owned by the communicator. Thread-safe, but only one thread at a time may post.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/shared_memory/shared_segment.h"

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

/// A collective, identified by its kind and its number within that kind, counted from 0.
struct Numbered {
  Collective kind = Collective::barrier;
  uint64_t number = 0;

  bool operator==(const Numbered&) const = default;
};

class ControlBlock {
 public:
  /// The number of collectives of one kind that may be in flight. The next collective must wait for a free
  /// slot.
  static constexpr uint64_t kSlots = 128;

  static size_t bytes(int world_size);
  /// Creates the segment for the ranks of `job`. Throws Error.
  static SharedSegment make(int world_size, uint64_t job);
  /// `segment` has bytes(world_size) bytes. Throws Error if it belongs to another job, or if another process
  /// has already taken this rank.
  ControlBlock(SharedSegment segment, int rank, int world_size, uint64_t job);

  SharedSegment& segment() { return segment_; }

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

  /// Records which collective this rank waits for, so that other ranks can name it in their error messages.
  /// Pass nullopt when the wait has succeeded. After a failed wait the record stays.
  void say_waiting(std::optional<Numbered> which);
  std::optional<Numbered> waiting(int rank) const;
  /// Records that this rank's wait has failed. Other ranks then do not report this rank's exit as the cause
  /// of their own failures.
  void say_failed();
  bool has_failed(int rank) const;
  /// Records that several threads of this rank use the communicator. While one of them waits, another one may
  /// start the collective that other ranks wait for.
  void say_threaded();
  bool is_threaded(int rank) const;

  /// A counter that changes when an event occurs that this rank may wait for. Read it before you check the
  /// condition, and pass the value to sleep().
  uint32_t bell() const;
  /// Returns when bell() differs from `bell`, or after `limit`. Polls for up to `spin` before it sleeps.
  void sleep(uint32_t bell, std::chrono::microseconds spin, std::chrono::milliseconds limit);
  /// Wakes other threads of this rank.
  void ring_own() { ring(rank_); }

 private:
  struct Header;
  struct Rank;
  struct Slot;

  Header& header() const;
  Rank& rank_part(int rank) const;
  Slot& slot(int rank, Numbered which) const;
  void ring(int rank);
  void ring_all();

  SharedSegment segment_;
  int rank_;
  int world_size_;
};

}  // namespace zerorun
