// Manages the memory of buckets and knows which streams used it last. Planned gathers have positions in one
// reusable arena; other gathers allocate memory. A shared bucket stays in shared memory, except while this
// rank has a private copy of it. Owned by GatheredBuckets.
//
// The host does not wait before memory is reused. Instead the stream of the next gather into the memory waits
// for all streams that have used this memory for any bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"

namespace zerorun {

class GatherMemory {
 public:
  /// All arguments must outlive this object. Whole and shared buckets always have memory.
  GatherMemory(const Buckets& buckets, const SliceStore& store, Communicator& communicator);

  /// The bucket's memory, 1-D; undefined if it has none.
  const at::Tensor& of(int bucket) const { return places_[bucket].memory; }
  /// The streams that use the bucket's values.
  StreamUsers& users(int bucket) { return places_[bucket].users; }
  bool planned(int bucket) const { return places_[bucket].planned; }

  /// Gives the bucket the arena's memory at `offset` (elements), or its shared buffer. Returns false if
  /// another bucket still uses part of that memory, or if the memory would extend beyond the arena's end.
  bool take_planned(int bucket, int64_t offset);
  /// Gives the bucket its shared buffer, or else allocates memory for it. With a single rank the bucket's
  /// memory is its slice, unless a gather must copy the slice from a file or from host memory.
  void take_unplanned(int bucket);
  /// Call this before the current stream writes to the bucket's memory. Makes the stream wait for all streams
  /// that used this memory, or that used the bucket at its previous position.
  void wait_for_last_uses(int bucket);
  /// Releases the bucket's memory. The memory may be reused when the streams that use it have finished the
  /// work submitted to them so far.
  void give_back(int bucket);

  /// Gives a shared bucket, which must have no copy yet, a private copy of its values. This rank may write
  /// the copy.
  void make_copy(int bucket);
  /// Frees the copy. The bucket is in shared memory again.
  void drop_copy(int bucket);
  bool is_copy(int bucket) const { return places_[bucket].copied; }
  /// The number of copies that exist now.
  int copies() const { return copies_; }

  /// Makes an arena of `numel` elements, unless the present arena is large enough or in use. Before it makes
  /// the first one, it gives the memory of earlier unplanned gathers back to the system, because no other
  /// stream could reuse it. A collective.
  void fit_arena(int64_t numel);
  /// Frees the arena, unless a planned gather still uses it.
  void free_arena();
  int64_t arena_numel() const { return arena_.defined() ? arena_.numel() : 0; }

  /// Bytes of the memory that gathers use: the arena, unplanned gathers, private copies, and 1/world size of
  /// the shared buffers of gathered buckets.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t unplanned_allocations() const { return unplanned_allocations_; }

 private:
  struct Place {
    at::Tensor memory;
    bool planned = false;   // `memory` is from take_planned(): in the arena, or the shared buffer
    bool copied = false;    // `memory` is this rank's private copy of a shared bucket
    StreamUsers users;      // streams that used the values since the last gather
    uintptr_t address = 0;  // address of the memory that `users` used
  };

  bool take_shared(int bucket);
  int64_t shared_bytes(int bucket) const;
  void count(int64_t bytes);

  const Buckets* buckets_;
  const SliceStore* store_;
  Communicator* communicator_;
  Streams* streams_;
  std::vector<Place> places_;  // one per bucket
  bool needs_arena_ = false;   // some buckets are gathered into memory of this rank alone
  at::Tensor arena_;
  bool emptied_cache_ = false;
  int copies_ = 0;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t unplanned_allocations_ = 0;
};

}  // namespace zerorun
