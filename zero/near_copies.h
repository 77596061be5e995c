// Second copies of partitioned parameters, sliced among a group of neighbouring ranks, such as those of one
// host (hpZ of ZeRO++, arXiv:2306.10209, section 3.2; zero_hpz_partition_size). The first gather of a bucket
// after an update is among all ranks, and each rank keeps its part of it. Later gathers, such as backward's,
// are inside the group. Owned by GatheredBuckets, used under Residency's lock.
//
// All ranks gather inside the group or all of them do not, because copies are kept and dropped at points that
// all ranks pass alike: gathers, releases of buckets to which the program has written, beginnings of
// scopes, updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"

namespace zerorun {

class NearCopies {
 public:
  /// Allocates the copies of the buckets that come and go. `group`: its size divides each bucket's number of
  /// elements; null: there are no copies. Both arguments must outlive this object.
  NearCopies(const Buckets& buckets, const SliceStore& store, Communicator* group);

  /// Whether the next gather of the bucket is inside the group.
  bool has(int bucket) const { return !copies_.empty() && copies_[bucket].is_current; }
  /// Starts an all-gather of the copies into `memory`, all of the bucket. has(bucket) must be true.
  std::unique_ptr<Work> gather(int bucket, const at::Tensor& memory, std::string label, std::string reason);
  /// Whether the copy's values were rounded to 8 bits (QuantizedGathers).
  bool is_rounded(int bucket) const { return copies_[bucket].is_rounded; }
  /// Copies this rank's part of `memory`, all values of the bucket, on the current stream.
  void keep(int bucket, const at::Tensor& memory, bool is_rounded);
  /// The values change.
  void drop(int bucket);
  /// The group; null if there is none.
  Communicator* group() const { return group_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Copy {
    at::Tensor values;  // undefined: the bucket has none
    bool is_current = false;
    bool is_rounded = false;
  };

  Communicator* group_;
  std::vector<Copy> copies_;  // one per bucket, or empty
  int64_t bytes_ = 0;
};

}  // namespace zerorun
