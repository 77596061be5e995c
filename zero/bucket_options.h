// How buckets keep the values of parameters. Plain values.
#pragma once

#include "base/dtype.h"
#include "comm/communicator.h"
#include "zero/layout.h"

namespace zerorun {

struct BucketOptions {
  /// Operators on the parameters notify the listener set by listen(). Required if a bucket is partitioned.
  bool marked = false;
  bool shared = false;            // marked buckets are kept or gathered in memory that the ranks share
  Dtype dtype = Dtype::fp32;      // dtype of the values
  Dtype master = Dtype::fp32;     // dtype of master weights: float32, or `dtype`
  bool master_from_fp32 = false;  // master weights start from the given parameters, not from the rounded ones
  bool whole_master = false;      // this rank keeps master weights of all slices, not only its own
  bool master_on_host = false;    // master weights are in host memory; see has_master() for fp32 values
  bool shards_on_host = false;    // the values of partitioned buckets are in host memory, not on the GPU
  /// The ranks that share the model, some of whose parameters they split; null if there is no such plan.
  /// Initial values are those of its rank 0.
  Communicator* tensor = nullptr;
  /// The ranks that have this rank's slices in other replicas of the data ranks; null if there are none.
  /// Initial values are those of its rank 0.
  Communicator* replicas = nullptr;
};

/// Whether a bucket has master weights. A trained bucket has them if its values are rounded, or if the host
/// updates it and its values are not in host memory.
inline bool has_master(const BucketLayout& layout, const BucketOptions& options) {
  if (layout.group == kFrozen) return false;
  return options.dtype != options.master ||
         (options.master_on_host && !(options.shards_on_host && layout.partitioned));
}

}  // namespace zerorun
