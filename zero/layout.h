// Where each parameter lives: the only owner of offsets. Pure arithmetic, no LibTorch; immutable once made.
//
// [Note: layout] Parameters are laid into buckets in reverse order of registration, roughly the order in
// which backward produces their gradients. A bucket is padded so that N ranks own equal slices; slices and
// offsets are aligned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zerorun {

/// The group of parameters that are not trained.
inline constexpr int kFrozen = -1;

/// A range of consecutive elements.
struct Range {
  int64_t begin;
  int64_t numel;  // 0: none
};

struct LayoutParameter {
  int64_t numel;
  int group;                 // all parameters of a bucket have the same group, hence the same hyperparameters
  bool partitioned = false;  // likewise; see BucketLayout
};

struct ParameterLocation {
  int bucket;
  int64_t offset;  // elements from the bucket's start
};

struct BucketLayout {
  int group;
  bool partitioned;             // between uses each rank keeps only its slice
  int64_t numel;                // with padding, N times slice_numel
  int64_t slice_numel;          // what one rank owns
  std::vector<int> parameters;  // indices, by rising offset
};

struct Layout {
  std::vector<ParameterLocation> locations;  // one per parameter
  std::vector<BucketLayout> buckets;
};

/// The bucket size in elements that the layout aims at: min(both bounds of the config, a sixteenth of the
/// parameters, 32 MiB), so that there is always something left to overlap with.
int64_t choose_bucket_numel(int64_t total_numel, int64_t element_size, int64_t reduce_bucket_size,
                            int64_t allgather_bucket_size);

/// Buckets of trained parameters come first. Offsets and slices are multiples of `alignment` elements.
/// `bucket_numel` bounds the size of a bucket's parameters, their alignment included; a larger parameter gets
/// a bucket of its own.
Layout make_layout(std::span<const LayoutParameter> parameters, int world_size, int64_t alignment,
                   int64_t bucket_numel);

}  // namespace zerorun
