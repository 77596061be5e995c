// The memory of gathered buckets, and the streams that used it last. Planned gathers go to fixed places in an
// arena; other gathers get memory of their own. A bucket in shared memory stays where it is, except while
// this rank has its own copy. Owned by Residency, used under its lock.
//
// Memory is reused without a wait of the host: the next gather into it waits on its stream for all streams
// that used that memory, for whichever bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"

namespace zerorun {

class GatherMemory {
 public:
  /// Both outlive it. Whole and shared buckets keep their memory.
  GatherMemory(const Buckets& buckets, Communicator& communicator);

  /// 1-D; undefined if the bucket has no memory.
  const at::Tensor& of(int bucket) const { return places_[bucket].memory; }
  /// Streams that use its values.
  StreamUsers& users(int bucket) { return places_[bucket].users; }
  bool planned(int bucket) const { return places_[bucket].planned; }

  /// Gives the bucket its planned place. False if another bucket is still there, or the plan is for another
  /// arena.
  bool take_planned(int bucket, int64_t offset);
  /// Gives the bucket memory of its own; on a single rank its slice, the whole bucket, if that is in memory.
  void take_unplanned(int bucket);
  /// Makes the current stream, which is about to write to the bucket's memory, wait for all streams that used
  /// this memory, or this bucket at its former place.
  void wait_for_last_uses(int bucket);
  /// Gives up the bucket's memory once its current users are done.
  void give_back(int bucket);

  /// Gives a bucket in shared memory, which has no copy yet, a copy that this rank may write to.
  void make_copy(int bucket);
  /// Drops the copy: the bucket is in shared memory again.
  void drop_copy(int bucket);
  bool is_copy(int bucket) const { return places_[bucket].copied; }

  /// Makes an arena of `numel` elements, unless the present one is as large. A collective.
  void fit_arena(int64_t numel);
  /// Frees the arena, unless a bucket is in it.
  void free_arena();
  int64_t arena_numel() const { return arena_.defined() ? arena_.numel() : 0; }

  /// Bytes behind buckets that come and go, with the arena, and of copies.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t unplanned_allocations() const { return unplanned_allocations_; }

 private:
  struct Place {
    at::Tensor memory;
    bool planned = false;   // where the plan says: in the arena, or in its shared buffer
    bool copied = false;    // it is this rank's copy of a shared bucket
    StreamUsers users;      // of the values, since the last gather
    uintptr_t address = 0;  // of the memory that those streams used
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
