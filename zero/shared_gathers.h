// Buffers into which the ranks of one host gather buckets whose values are in files: one buffer a bucket for
// all ranks. Each rank reads its slice from its files into its part of the buffer. Owned by Buckets; used by
// residency under its lock.
//
// [Note: shared gathers] A gather of a bucket is complete once every rank has started it, so a rank that has
// released the bucket reads none of the other ranks' slices before those ranks start the next gather. Hence
// each rank alone decides about its slice: it counts the gathers that it has started, each rank publishes the
// number of the last gather that it has released, and where all of them have released the last gather
//   - the pages of the slice go back to the system, by its owner;
//   - the next gather reads the slice anew. Otherwise the slice is still in the buffer, and unchanged: values
//     change only after a collective that each rank enters after it has released the bucket (the norm before
//     an update, a barrier before writes of the program).
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
  /// A collective; the communicator outlives it.
  SharedGathers(int buckets, Communicator& communicator);

  /// Makes the bucket's buffer, 1-D and zero-filled; undefined if there is no room for it. A collective.
  const at::Tensor& make_buffer(int bucket, int64_t numel, at::ScalarType dtype);
  /// Undefined if each rank gathers the bucket into private memory.
  const at::Tensor& buffer(int bucket) const { return buckets_[bucket].buffer; }

  /// This rank starts a gather of the bucket. Returns whether it has to read its slice into the buffer.
  bool start(int bucket);
  /// This rank has stopped using the buffer. In a forked child it does nothing, and so does
  /// give_back_pages(): the parent may still use the buffer.
  void release(int bucket);
  /// Returns memory to the system: this rank's slices that no rank uses any more.
  void give_back_pages();
  /// Whether every rank has released the last gather that this rank has started.
  bool is_free(int bucket) const;

 private:
  struct Bucket {
    at::Tensor buffer;
    int64_t started = 0;     // number of gathers
    bool has_pages = false;  // this rank's slice takes memory
  };

  std::atomic_ref<int64_t> last_released(int bucket, int rank) const;

  Communicator* communicator_;
  at::Tensor released_;  // by bucket and rank: the number of its last gather that the rank has released
  std::vector<Bucket> buckets_;
  HomeProcess home_;
};

}  // namespace zerorun
