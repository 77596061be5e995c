// Where buckets lie while their values are there, and who used them last. What a plan foresees has its place
// in an arena, which gathers fill for ever; the rest has memory of its own. A bucket that ranks share stays
// where it is, but for the time in which this rank has a copy of its own. Owned by Residency, used under its
// lock.
//
// Memory is taken again without a wait of the host: whatever gathers there waits on its stream for those who
// have used it, whichever bucket it was then.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"

namespace zerorun {

class GatherMemory {
 public:
  /// Both outlive it. Whole and shared buckets have their memory for good.
  GatherMemory(const Buckets& buckets, Communicator& communicator);

  /// 1-D; undefined where the bucket has none.
  const at::Tensor& of(int bucket) const { return places_[bucket].memory; }
  /// Streams that use its values.
  StreamUsers& users(int bucket) { return places_[bucket].users; }
  bool planned(int bucket) const { return places_[bucket].planned; }

  /// Gives the bucket its place in the arena. False where another bucket is still there, or where the plan is
  /// made for another arena.
  bool take_planned(int bucket, int64_t offset);
  /// Gives it memory of its own; on one rank its slice, which is all of it, where that is in memory.
  void take_unplanned(int bucket);
  /// The current stream is about to write to the bucket's memory: after everyone who used it, and those who
  /// used this bucket where it was before.
  void wait_for_last_uses(int bucket);
  /// The bucket needs its memory no longer than its users do.
  void give_back(int bucket);

  /// Gives a shared bucket, which has none, a copy of its values that this rank may write to.
  void make_copy(int bucket);
  /// Takes the copy away. The bucket is where all ranks have it again.
  void drop_copy(int bucket);
  bool is_copy(int bucket) const { return places_[bucket].copied; }

  /// Makes an arena of so many elements, unless there is a larger one. A collective.
  void fit_arena(int64_t numel);
  /// Frees it, unless a bucket is in it.
  void free_arena();
  int64_t arena_numel() const { return arena_.defined() ? arena_.numel() : 0; }

  /// Behind buckets that come and go, the arena included, and of copies.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t unplanned_allocations() const { return unplanned_allocations_; }

 private:
  struct Place {
    at::Tensor memory;
    bool planned = false;   // where the plan says: in the arena, or in its shared buffer
    bool copied = false;    // it is this rank's copy of a shared bucket
    StreamUsers users;      // of the values, since the last gather
    uintptr_t address = 0;  // of the memory that they used
  };

  bool take_shared(int bucket);
  int64_t shared_bytes(int bucket) const;
  void count(int64_t bytes);

  const Buckets* buckets_;
  Communicator* communicator_;
  Streams* streams_;
  std::vector<Place> places_;  // one a bucket
  bool needs_arena_ = false;   // some bucket comes and goes in memory of this rank's own
  at::Tensor arena_;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t unplanned_allocations_ = 0;
};

}  // namespace zerorun
