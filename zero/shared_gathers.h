// Buffers for gathers of buckets whose values are in files, if the ranks share memory. Each bucket has one
// buffer for all ranks of the host, and each rank reads its slice from its file into its part of the buffer.
// Owned by Buckets; GatheredBuckets and GatherMemory use it under Residency's lock.
//
// [Note: shared gathers] Each rank decides alone whether its slice stays in the buffer. It counts the gathers
// that it has started. When it releases a gather, it publishes this count. A bucket is free if all ranks have
// released the last gather that this rank has started.
//   - give_back_pages() returns the pages of this rank's slices of free buckets to the system.
//   - start() of a free bucket makes this rank read its slice from the file.
//   - start() of a bucket that is not free reads nothing: the slice in the buffer is still valid. For values
//     change only after a collective (the norm's all-reduce before an update, a barrier before the program's
//     writes). Every rank releases the bucket before it enters that collective, and some rank has not.
// No rank reads a slice too early, because a gather is complete only after every rank has started it.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/process.h"
#include "comm/communicator.h"

namespace zerorun {

class SharedGathers {
 public:
  /// A collective. `communicator` must outlive this object.
  SharedGathers(int buckets, Communicator& communicator);

  /// Makes the bucket's buffer, 1-D and zero-filled. Returns an undefined tensor if there is no room for it.
  /// A collective.
  const at::Tensor& make_buffer(int bucket, int64_t numel, at::ScalarType dtype);
  /// Undefined if each rank gathers the bucket into private memory.
  const at::Tensor& buffer(int bucket) const { return buckets_[bucket].buffer; }

  /// Notes that this rank starts a gather of the bucket. Returns whether this rank must read its slice into
  /// the buffer.
  bool start(int bucket);
  /// Notes that this rank no longer uses the buffer. In a forked child release() and give_back_pages() do
  /// nothing, because the parent may still use the buffer.
  void release(int bucket);
  /// Gives the pages of this rank's slices back to the system, except slices that a rank still uses.
  void give_back_pages();
  /// Whether every rank has released the bucket's gather that this rank started last.
  bool is_free(int bucket) const;

 private:
  struct Bucket {
    at::Tensor buffer;
    int64_t started = 0;     // number of gathers that this rank has started
    bool has_pages = false;  // this rank's slice occupies pages
  };

  std::atomic_ref<int64_t> last_released(int bucket, int rank) const;

  Communicator* communicator_;
  at::Tensor released_;  // by bucket and rank: the rank's `started` when it last released the bucket
  std::vector<Bucket> buckets_;
  HomeProcess home_;
};

}  // namespace zerorun
