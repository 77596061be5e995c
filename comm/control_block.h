// Progress of the ranks of one host, in a segment that all of them map: each rank writes its own part and
// reads the parts of the other ranks.
//
// Every rank has a ring of slots for each kind of collective. In slot n it posts its part of collective
// number n of that kind; once it has read all that it needs from the other ranks it marks the slot
// finished. Numbers only grow, so a slot with a later number means that this collective is over. The last
// rank to post or to finish rings every rank's bell, and a waiting rank sleeps on its own bell: each rank
// wakes once per collective, and none spins on a core that another rank needs.
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

/// A rank's part of a collective. Other ranks compare everything except the offset.
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
  /// Collectives of a kind that may be under way; the next one must wait.
  static constexpr uint64_t kSlots = 128;

  static size_t bytes(int world_size);
  /// A segment for the ranks of `job`. Throws Error.
  static SharedSegment make(int world_size, uint64_t job);
  /// `segment` has bytes(world_size). Throws Error if it belongs to another job, or another process has
  /// this rank in it.
  ControlBlock(SharedSegment segment, int rank, int world_size, uint64_t job);

  SharedSegment& segment() { return segment_; }

  /// The slot must be free: all ranks have finished number - kSlots.
  void post(Numbered which, const Posting& posting, std::string_view label, std::string_view reason);
  bool has_posted(int rank, Numbered which) const;
  /// The post of a rank that has posted, valid until this rank finishes.
  const Posting& posting(int rank, Numbered which) const;

  /// This rank has read everything that it needs from the other ranks.
  void finish(Numbered which);
  bool has_finished(int rank, Numbered which) const;

  /// The text of a rank's slot, for messages; "?" if the slot has been reused.
  std::string words(int rank, Numbered which) const;

  /// For messages: what this rank waits for or has waited for in vain; nothing if it does not wait.
  void say_waiting(std::optional<Numbered> which);
  std::optional<Numbered> waiting(int rank) const;
  /// For messages: this rank has given up, so its exit is not the cause of the failure.
  void say_failed();
  bool has_failed(int rank) const;

  /// Changes when something happens that this rank may wait for. Read it before checking the condition.
  uint32_t bell() const;
  /// Returns when the bell differs from `bell`, or after `limit`. Polls for `spin` before it sleeps.
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
