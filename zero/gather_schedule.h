// Plans when each bucket is gathered and released within an iteration, from the trace of an earlier
// iteration. Pure arithmetic, no LibTorch. All sizes are in elements.
//
// [Note: schedule] Integrated prefetching and caching (Cao, Felten et al. 1995). The plan depends only on the
// trace and the limits, so it is the same on every rank. A bucket that is needed but not in memory is
// gathered. If that would exceed `max_live`, the bucket with the furthest next use is released first. A
// bucket is released after its last use, and after any other use if more than `max_reuse_distance` elements
// are used before its next use. Gathers start in the order of first use and as early as possible, with at
// most `prefetch` elements gathered ahead of their use. A gather that must wait delays all later gathers. No
// gather starts in the step that releases the same bucket. Every gather has a position in one arena, so
// following the plan allocates nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zerorun {

/// By default there is no limit.
struct GatherLimits {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  int64_t max_live = kNoLimit;            // stage3_max_live_parameters
  int64_t max_reuse_distance = kNoLimit;  // stage3_max_reuse_distance
  int64_t prefetch = kNoLimit;            // stage3_prefetch_bucket_size; 0: no prefetching
};

struct GatherPlan {
  struct Gather {
    int bucket;
    int64_t offset;  // position in the arena
    int use;         // index of the use that needs the bucket
  };
  /// The actions right before one use; step k belongs to use k. First come the releases, then the gathers in
  /// order. Gathers for this use come before prefetches.
  struct Step {
    std::vector<int> releases;
    std::vector<Gather> gathers;
  };

  std::vector<Gather> initial;  // started when the iteration begins, before anything is used
  std::vector<Step> steps;      // one per use; after the last use the caller releases all buckets in memory
  int64_t arena_numel = 0;
  int64_t gathered_numel = 0;  // the sum of elements of all gathers
};

/// `uses[k]`: the buckets that the k-th use needs at once, ascending and without repetition. No bucket is in
/// memory at the start. The plan has the buckets of each use in memory when the use begins. During a use,
/// buckets that have been used take at most max(max_live, elements of this use), and prefetched buckets at
/// most `prefetch`. The arena has at most max(max_live, largest use) + prefetch elements if such a placement
/// is found, possibly by planning with lower limits. Offsets are sums of bucket sizes, so they have the
/// alignment of these sizes. Throws InternalError if a limit is negative or a use is not as described.
GatherPlan plan_gathers(std::span<const std::vector<int>> uses, std::span<const int64_t> bucket_numel,
                        const GatherLimits& limits);

}  // namespace zerorun
