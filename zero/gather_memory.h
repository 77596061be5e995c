// The memory of buckets while their values are in it, and the streams that used them last. Planned gathers
// have their places in one arena, which is reused; other gathers allocate memory. A shared bucket stays in
// shared memory, except while this rank has a private copy of it. Owned by Residency, used under its lock.
//
// The host does not wait before memory is reused: the next gather into it waits on its stream for all streams
// that have used this memory, for whichever bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"

namespace zerorun {

class GatherMemory {
 public:
  /// Both must outlive it. Whole and shared buckets always have memory.
  GatherMemory(const Buckets& buckets, Communicator& communicator);

  /// The bucket's memory, 1-D; undefined if it has none.
  const at::Tensor& of(int bucket) const { return places_[bucket].memory; }
  /// Streams that use its values.
  StreamUsers& users(int bucket) { return places_[bucket].users; }
  bool planned(int bucket) const { return places_[bucket].planned; }

  /// Gives the bucket its place in the arena, or its shared buffer. Returns false if another bucket is still
  /// in that place, or if it lies beyond the arena.
  bool take_planned(int bucket, int64_t offset);
  /// Allocates memory for the bucket, if it has no shared buffer. A single rank uses the bucket's slice,
  /// which is all of it, unless a gather has to copy it from files or the host.
  void take_unplanned(int bucket);
  /// Call this before the current stream writes to the bucket's memory: it waits for all streams that used
  /// this memory, and for those that used the bucket in its previous place.
  void wait_for_last_uses(int bucket);
  /// Releases the bucket's memory as of the end of its uses so far.
  void give_back(int bucket);

  /// Gives a shared bucket without a copy a private copy of its values, which this rank may write.
  void make_copy(int bucket);
  /// Frees the copy. The bucket is in shared memory again.
  void drop_copy(int bucket);
  bool is_copy(int bucket) const { return places_[bucket].copied; }

  /// Makes an arena of `numel` elements, unless the present one is as large. A collective.
  void fit_arena(int64_t numel);
  /// Frees the arena, unless a bucket is in its planned place.
  void free_arena();
  int64_t arena_numel() const { return arena_.defined() ? arena_.numel() : 0; }

  /// Bytes of buckets that come and go, the arena included, and of copies. Shared buffers count 1/world size.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t unplanned_allocations() const { return unplanned_allocations_; }

 private:
  struct Place {
    at::Tensor memory;
    bool planned = false;   // in its planned place: in the arena, or its shared buffer
    bool copied = false;    // it is this rank's private copy of a shared bucket
    StreamUsers users;      // of the values, since the last gather
    uintptr_t address = 0;  // of the memory that they used
  };

  bool take_shared(int bucket);
  int64_t shared_bytes(int bucket) const;
  void count(int64_t bytes);

  const Buckets* buckets_;
  Communicator* communicator_;
  Streams* streams_;
  std::vector<Place> places_;  // one per bucket
  bool needs_arena_ = false;   // some bucket comes and goes in private memory
  at::Tensor arena_;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t unplanned_allocations_ = 0;
};

}  // namespace zerorun
