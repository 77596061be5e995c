// Assigns each parameter to a bucket and an offset; all offsets are computed here. Pure arithmetic, no
// LibTorch. A Layout does not change once it is made.
//
// [Note: layout] Parameters are laid into buckets in reverse order of registration, roughly the order in
// which backward produces their gradients. A bucket is padded so that N ranks own equal slices; slices and
// offsets are aligned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zerorun {

/// Collectives of larger buckets are hardly faster on CPUs.
inline constexpr int64_t kUsefulBucketBytes = int64_t{32} << 20;

/// The group number of parameters that are not trained.
inline constexpr int kFrozen = -1;

/// A range of consecutive elements.
struct Range {
  int64_t begin;
  int64_t numel;  // 0 if the range is empty
};

/// The elements that are in both ranges.
constexpr Range overlap(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  const int64_t end = std::min(a.begin + a.numel, b.begin + b.numel);
  return {.begin = begin, .numel = std::max<int64_t>(end - begin, 0)};
}

/// What each rank of a tensor group has of a parameter.
enum class Share {
  whole,   // all of it, with the same gradient on all tensor ranks
  summed,  // all of it, and the gradient is the sum of the tensor ranks'
  split,   // a part of it (zero/split.h)
};

struct LayoutParameter {
  int64_t numel;  // of the largest part, if the parameter is split: all tensor ranks have the same layout
  int group;      // all parameters of a bucket have the same group, hence the same hyperparameters
  bool partitioned = false;    // the same for all parameters of a bucket; see BucketLayout
  bool counted = true;         // likewise
  Share share = Share::whole;  // likewise
  bool alone = false;          // in a bucket of its own, whose layout depends on no other parameter
};

struct ParameterLocation {
  int bucket;
  int64_t offset;  // elements from the bucket's start
};

struct BucketLayout {
  int group;
  bool partitioned;  // each rank keeps only its slice between uses
  /// Whether this rank's data group counts the parameters in sums over all ranks of the job, such as the
  /// norm. Of the data groups that have a parameter, exactly one counts it.
  bool counted;
  Share share;
  int64_t numel;                // padding included: world size * slice_numel
  int64_t slice_numel;          // elements of each rank's slice
  std::vector<int> parameters;  // indices of the bucket's parameters, in order of offset
};

struct Layout {
  std::vector<ParameterLocation> locations;  // one per parameter
  std::vector<BucketLayout> buckets;
};

struct BucketSizeLimits {
  int64_t reduce_bucket_size;                              // elements
  int64_t allgather_bucket_size;                           // elements
  int64_t max_bytes = kUsefulBucketBytes;                  // the device's limit (Device::bucket_bytes())
  int64_t prefetch = std::numeric_limits<int64_t>::max();  // elements that may be gathered ahead of their use
};

/// Returns the bucket size in elements that the layout aims at: at most the limits, and a sixteenth of
/// total_numel, because communication can overlap with computation only if there are several buckets. The
/// limit `prefetch` holds above 32 MiB only: a larger bucket is gathered no earlier than it is needed.
int64_t choose_bucket_numel(int64_t total_numel, int64_t element_size, const BucketSizeLimits& limits);

/// Lays out `parameters`; buckets of trained parameters come first. Offsets and slice lengths are multiples
/// of `alignment` (elements). The parameters of a bucket take at most `bucket_numel` elements, including gaps
/// for alignment; a larger parameter gets a bucket of its own.
Layout make_layout(std::span<const LayoutParameter> parameters, int world_size, int64_t alignment,
                   int64_t bucket_numel);

}  // namespace zerorun
