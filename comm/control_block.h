// Where the ranks of one host tell each other how far they are: a segment that all of them map. Each rank
// writes its own part and reads those of the others.
//
// Every rank has a ring of slots for each kind of collective. What it brings to collective number n of that
// kind it posts in slot n; when it has taken all that it needs from the others it marks the slot finished.
// Numbers only grow, so a slot that has gone on to a later number says that this one is over. Who posts or
// finishes last rings every rank's bell, and who waits sleeps on its own: one wake-up a collective and rank,
// and nobody spins on a core that another rank needs.
//
// Owned by the communicator; any thread, but only one at a time posts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/shared_segment.h"

namespace zerorun {

/// What a rank brings to a collective. The others compare all but the place.
struct Posting {
  int64_t numel = 0;
  int64_t offset = 0;  // of what it lends, in its arena
  uint64_t label_hash = 0;
  int32_t dtype = 0;
  int32_t root = 0;
  int32_t in_place = 0;  // what is moved lies in memory that all ranks share
};

/// A collective: number `number` of its kind, from 0 on.
struct Numbered {
  Collective kind = Collective::barrier;
  uint64_t number = 0;

  bool operator==(const Numbered&) const = default;
};

class ControlBlock {
 public:
  /// Collectives of a kind that may be under way; the next one waits.
  static constexpr uint64_t kSlots = 128;

  static size_t bytes(int world_size);
  /// A segment for the ranks of `job`. Throws Error.
  static SharedSegment make(int world_size, uint64_t job);
  /// `segment` has bytes(world_size). Throws Error if it is another job's, or another process has this rank
  /// in it.
  ControlBlock(SharedSegment segment, int rank, int world_size, uint64_t job);

  SharedSegment& segment() { return segment_; }

  /// The slot must be free: all ranks have finished number - kSlots.
  void post(Numbered which, const Posting& posting, std::string_view label, std::string_view reason);
  bool has_posted(int rank, Numbered which) const;
  /// Of a rank that has posted, until this one finishes.
  const Posting& posting(int rank, Numbered which) const;

  /// This rank reads nothing of the others any more.
  void finish(Numbered which);
  bool has_finished(int rank, Numbered which) const;

  /// The text of a rank's slot, for messages. "?" if it has gone on.
  std::string words(int rank, Numbered which) const;

  /// For messages: what this rank waits for, or waited for in vain; none: nothing.
  void say_waiting(std::optional<Numbered> which);
  std::optional<Numbered> waiting(int rank) const;
  /// For messages: this rank has given up, so that its end is not what went wrong.
  void say_failed();
  bool has_failed(int rank) const;

  /// Changes whenever something may have happened that this rank waits for. Read it before looking.
  uint32_t bell() const;
  /// Returns when the bell is no longer `bell`, or after `limit`. Looks again and again for the length of
  /// `spin` first.
  void sleep(uint32_t bell, std::chrono::microseconds spin, std::chrono::milliseconds limit);
  /// For other threads of this rank.
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
