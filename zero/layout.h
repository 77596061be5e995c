// The bucket and offset of each parameter, computed only here. Pure arithmetic, no LibTorch; immutable.
//
// [Note: layout] Parameters are laid into buckets in reverse order of registration, roughly the order in
// which backward produces their gradients. A bucket is padded so that N ranks own equal slices; slices and
// offsets are aligned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zerorun {

/// The group of frozen parameters.
inline constexpr int kFrozen = -1;

/// Consecutive elements.
struct Range {
  int64_t begin;
  int64_t numel;  // 0: none
};

struct LayoutParameter {
  int64_t numel;
  int group;                 // the same for all parameters of a bucket, which so share hyperparameters
  bool partitioned = false;  // the same for all parameters of a bucket; see BucketLayout
};

struct Placement {
  int bucket;
  int64_t offset;  // elements from the bucket's start
};

struct BucketLayout {
  int group;
  bool partitioned;             // between uses each rank keeps only its slice
  int64_t numel;                // with padding: N times slice_numel
  int64_t slice_numel;          // of the slice that one rank owns
  std::vector<int> parameters;  // indices, by rising offset
};

struct Layout {
  std::vector<Placement> placements;  // one a parameter
  std::vector<BucketLayout> buckets;
};

/// The target size of a bucket in elements: min(both bounds of the config, a sixteenth of the parameters,
/// 32 MiB), so that there are several buckets and communication can overlap with computation.
int64_t choose_bucket_numel(int64_t total_numel, int64_t element_size, int64_t reduce_bucket_size,
                            int64_t allgather_bucket_size);

/// Buckets of trained parameters come first. Offsets and slices are multiples of `alignment` elements.
/// `bucket_numel` bounds a bucket's parameters with their alignment; a larger parameter gets its own bucket.
Layout make_layout(std::span<const LayoutParameter> parameters, int world_size, int64_t alignment,
                   int64_t bucket_numel);

}  // namespace zerorun
