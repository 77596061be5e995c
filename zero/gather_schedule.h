// When each bucket is gathered and released within one iteration, planned from the trace of an earlier one.
// Pure arithmetic, no LibTorch. All sizes are in elements.
//
// [Note: schedule] Integrated prefetching and caching (Cao, Felten et al. 1995) with a plan that is the same
// on every rank, since it follows from the trace and the limits alone. A use gathers the buckets that it
// needs and that are not in memory; if that would exceed `max_live`, the bucket whose next use is furthest
// away is released first. A bucket is released after its use if the elements used before its next use exceed
// `max_reuse_distance`, and after its last use. Gathers keep the order of first use and start as early as
// `prefetch` elements ahead of use allow: a gather that must wait delays those after it, and no gather starts
// in the step that releases the same bucket. Every gather has a place in one arena, so following the plan
// allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zerorun {

struct GatherLimits {
  int64_t max_live = 1'000'000'000;            // stage3_max_live_parameters
  int64_t max_reuse_distance = 1'000'000'000;  // stage3_max_reuse_distance
  int64_t prefetch = 50'000'000;               // stage3_prefetch_bucket_size; 0: nothing ahead of its use
};

struct GatherPlan {
  struct Gather {
    int bucket;
    int64_t offset;  // place in the arena
    int use;         // position of the use that needs it
  };
  /// What happens right before the use at the same position: first the releases, then the gathers start, in
  /// order. Gathers for this use come before gathers for later ones.
  struct Step {
    std::vector<int> releases;
    std::vector<Gather> gathers;
  };

  std::vector<Gather> initial;  // started when the iteration begins, before anything is used
  std::vector<Step> steps;      // one for each use; the caller releases the buckets left after the last one
  int64_t arena_numel = 0;
  int64_t gathered_numel = 0;  // the sum over all gathers
};

/// `uses[k]`: the buckets, ascending and without repetition, that the k-th use needs at once. At the start no
/// bucket is gathered. While a use runs, buckets used before or now take at most max(max_live, that use), and
/// buckets gathered ahead at most `prefetch`. Keeps arena_numel <= max(max_live, largest use) + prefetch if
/// it finds such offsets, if necessary by planning with lower limits. Offsets are sums of bucket sizes, and
/// so are as aligned as those. Refuses negative limits.
GatherPlan plan_gathers(std::span<const std::vector<int>> uses, std::span<const int64_t> bucket_numel,
                        const GatherLimits& limits);

}  // namespace zerorun
