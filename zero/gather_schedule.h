// When each bucket is gathered and released within one iteration, planned from the trace of an earlier one.
// Pure arithmetic, no LibTorch. All sizes are in elements.
//
// [Note: schedule] Integrated prefetching and caching (Cao, Felten et al. 1995) with a plan that is the same
// on every rank, since it follows from the trace and the limits alone. A bucket that is needed but not in
// memory is gathered; if that would exceed `max_live`, the bucket whose next use is furthest ahead is
// released first. A bucket is released after its last use, and after any use if the elements used before its
// next use exceed `max_reuse_distance`. Gathers start in the order of first use, and as early as `prefetch`
// elements ahead of use allow: one that must wait delays those after it, and none starts in the step that
// releases the same bucket. Every gather has a place in one arena, so that following the plan allocates
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zerorun {

struct GatherLimits {
  int64_t max_live = 1'000'000'000;            // stage3_max_live_parameters
  int64_t max_reuse_distance = 1'000'000'000;  // stage3_max_reuse_distance
  int64_t prefetch = 50'000'000;               // stage3_prefetch_bucket_size; 0: no prefetching
};

struct GatherPlan {
  struct Gather {
    int bucket;
    int64_t offset;  // place in the arena
    int use;         // position of the use that it is for
  };
  /// Done right before the use at the same position: first the releases, then the starts of gathers, in
  /// order. Gathers for this use come before prefetches.
  struct Step {
    std::vector<int> releases;
    std::vector<Gather> gathers;
  };

  std::vector<Gather> initial;  // started when the iteration begins, before anything is used
  std::vector<Step> steps;      // one per use; the caller releases what is in memory after the last one
  int64_t arena_numel = 0;
  int64_t gathered_numel = 0;  // the sum over all gathers
};

/// `uses[k]`: the buckets that the k-th use needs at once, ascending and without repetition. No bucket is in
/// memory at the start; each use finds its buckets in memory. During a use, buckets used before or now take
/// at most max(max_live, that use), prefetched buckets at most `prefetch`. Keeps arena_numel <= max(max_live,
/// largest use) + prefetch if it finds a placement, with lower limits if necessary. Offsets are sums of
/// bucket sizes, so they have the same alignment. Throws InternalError if a limit is negative.
GatherPlan plan_gathers(std::span<const std::vector<int>> uses, std::span<const int64_t> bucket_numel,
                        const GatherLimits& limits);

}  // namespace zerorun
