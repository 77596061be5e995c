// The fp32 master weights of parameters in 16 bits, which are their rounded copies. This rank keeps those of
// the slices that it updates, in the SliceStore; the optimizer writes both. If an operator of the program
// writes to a parameter, Residency calls note_written(), and before the next update follow_writes() copies
// the written values into the master weights. Owned by Buckets.
#pragma once

#include <vector>

#include "zero/bucket_options.h"
#include "zero/slice_store.h"

namespace zerorun {

class MasterWeights {
 public:
  /// `store` and `communicator` must outlive this object.
  MasterWeights(SliceStore& store, Communicator& communicator, const BucketOptions& options);

  bool has(int bucket) const { return has_master(store_->layout(bucket), options_); }
  /// Whether values are master weights that have been rounded to 16 bits.
  bool are_rounded() const { return options_.dtype != options_.master; }
  /// Keeps what this rank updates of `exact`, the bucket's initial values, if the bucket has master weights.
  void keep(int bucket, const at::Tensor& exact);
  /// Call this after the program has written to parameters of the bucket. Only one thread at a time may call
  /// it.
  void note_written(int bucket) { written_[bucket] = true; }
  /// Copies the values that the program has written since the last call into the master weights. The written
  /// values must already be in this rank's slices.
  void follow_writes();

 private:
  void follow_writes(int bucket);
  at::Tensor written_on_host(int bucket);

  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  BucketOptions options_;
  std::vector<bool> written_;  // by bucket: the program has written to it since the last follow_writes()
  at::Tensor on_host_;         // buffer of written_on_host()
};

}  // namespace zerorun
