#include "zero/gather_schedule.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr int kInitial = -1;  // the position before the first use
constexpr int kNone = -1;     // no index, no offset

// The trace, and facts about it that every plan needs. A position equal to the number of uses means "never".
struct Trace {
  std::span<const std::vector<int>> uses;
  std::span<const int64_t> numel;          // by bucket
  std::vector<std::vector<int>> next_use;  // parallel to `uses`: the position of the bucket's next use
  std::vector<int64_t> used_before;        // by use: elements of all earlier uses
  std::vector<int64_t> own_place;          // by bucket: its offset if all used buckets lie side by side
  int64_t total_numel = 0;                 // elements of all used buckets
  int64_t largest_use = 0;                 // elements of the largest use

  int length() const { return static_cast<int>(uses.size()); }
};

// One stay of one bucket in memory.
struct Stay {
  int bucket;
  int use;               // the first use during the stay
  int release;           // released right before this use
  int start = kInitial;  // gathered right before this use
  int64_t numel;
};

Trace study(std::span<const std::vector<int>> uses, std::span<const int64_t> bucket_numel) {
  Trace trace;
  trace.uses = uses;
  trace.numel = bucket_numel;
  trace.next_use.resize(uses.size());
  trace.used_before.resize(uses.size() + 1);
  trace.own_place.resize(bucket_numel.size());
  const int buckets = static_cast<int>(bucket_numel.size());
  std::vector<int> upcoming(bucket_numel.size(), trace.length());
  for (int k = trace.length() - 1; k >= 0; --k) {
    const std::vector<int>& use = uses[k];
    const bool ascending = std::ranges::adjacent_find(use, std::greater_equal<>()) == use.end();
    ZR_CHECK(use.empty() || (ascending && use.front() >= 0 && use.back() < buckets),
             "use " + std::to_string(k) + " names a bucket that does not exist or is not in order");
    for (int bucket : use) {
      const int next = std::exchange(upcoming[bucket], k);
      trace.next_use[k].push_back(next);
      trace.used_before[k + 1] += bucket_numel[bucket];
      if (next < trace.length()) continue;
      trace.own_place[bucket] = std::exchange(trace.total_numel, trace.total_numel + bucket_numel[bucket]);
    }
    trace.largest_use = std::max(trace.largest_use, trace.used_before[k + 1]);
  }
  std::partial_sum(trace.used_before.begin(), trace.used_before.end(), trace.used_before.begin());
  return trace;
}

// Chooses from which use to which use each bucket stays in memory, with the fewest gathers that `max_live`
// allows. By Belady's rule, the bucket with the furthest next use is released first.
class DemandPass {
 public:
  DemandPass(const Trace& trace, const GatherLimits& limits)
      : trace_(trace), limits_(limits), live_(trace.numel.size(), kNone) {}

  std::vector<Stay> run() {
    for (int k = 0; k < trace_.length(); ++k) {
      if (k > 0) release_ended(k);
      make_room(k);
      use(k);
    }
    return std::move(residencies_);
  }

 private:
  // Releases buckets of the previous use that are not needed soon. The reuse distance is the number of
  // elements of all uses between a use of the bucket and its next use.
  void release_ended(int k) {
    for (size_t i = 0; i < trace_.uses[k - 1].size(); ++i) {
      const int next = trace_.next_use[k - 1][i];
      const int64_t distance = trace_.used_before[next] - trace_.used_before[k];
      if (next == trace_.length() || distance > limits_.max_reuse_distance)
        release(trace_.uses[k - 1][i], next, k);
    }
  }

  // Releases buckets, the furthest next use first, until the missing buckets of use `k` fit into max_live.
  // Buckets that are in memory and needed by use `k` come last in this order, so they stay.
  void make_room(int k) {
    int64_t missing = 0;
    for (int bucket : trace_.uses[k]) missing += live_[bucket] == kNone ? trace_.numel[bucket] : 0;
    while (live_numel_ + missing > limits_.max_live && !furthest_first_.empty()) {
      const auto [next, numel, bucket] = *furthest_first_.begin();
      if (next == k) return;
      release(bucket, next, k);
    }
  }

  void use(int k) {
    for (size_t i = 0; i < trace_.uses[k].size(); ++i) {
      const int bucket = trace_.uses[k][i];
      const int64_t numel = trace_.numel[bucket];
      if (live_[bucket] == kNone) {
        live_[bucket] = static_cast<int>(residencies_.size());
        live_numel_ += numel;
        residencies_.push_back({.bucket = bucket, .use = k, .release = trace_.length(), .numel = numel});
      }
      furthest_first_.erase({k, numel, bucket});
      furthest_first_.insert({trace_.next_use[k][i], numel, bucket});
    }
  }

  void release(int bucket, int next, int k) {
    furthest_first_.erase({next, trace_.numel[bucket], bucket});
    live_numel_ -= trace_.numel[bucket];
    residencies_[std::exchange(live_[bucket], kNone)].release = k;
  }

  const Trace& trace_;
  const GatherLimits& limits_;
  std::vector<int> live_;  // by bucket: index of its current stay in residencies_, or kNone
  int64_t live_numel_ = 0;
  std::set<std::tuple<int, int64_t, int>, std::greater<>> furthest_first_;  // (next use, numel, bucket)
  std::vector<Stay> residencies_;
};

// Starts each gather as early as `prefetch` allows, in the order of use.
void start_early(const Trace& trace, int64_t prefetch, std::vector<Stay>& residencies) {
  std::vector<int> earliest(trace.numel.size(), kInitial);  // by bucket: first position for its next gather
  std::vector<int64_t> due(trace.length());                 // by use: the elements in `ahead` for this use
  int64_t ahead = 0;  // elements of the gathers, including this one, that are started but not used yet
  int position = kInitial;
  for (Stay& residency : residencies) {
    if (position < residency.use) {
      ahead += residency.numel;
      due[residency.use] += residency.numel;
    }
    const auto must_wait = [&] { return position < residency.use && ahead > prefetch; };
    while (position < earliest[residency.bucket] || must_wait()) ahead -= due[++position];
    residency.start = position;
    earliest[residency.bucket] = residency.release + 1;  // a gather in the same step would undo the release
  }
}

// Places stays (a stay is the time that one bucket is in memory) in one arena. An optimal placement is
// NP-hard to find, so this class tries simple heuristics.
class ArenaPacking {
 public:
  explicit ArenaPacking(const std::vector<Stay>& residencies)
      : residencies_(residencies), count_(std::ssize(residencies)), offsets_(count_), present_(count_) {}

  // Returns the size of the smallest arena found, in elements, and sets `offsets` to the positions of the
  // stays in it.
  int64_t run(const Trace& trace, std::vector<int64_t>& offsets) {
    for (const Stay& residency : residencies_) offsets.push_back(trace.own_place[residency.bucket]);
    int64_t arena = trace.total_numel;
    const auto keep_better = [&](int64_t found) {
      if (found < arena) offsets = offsets_;
      arena = std::min(arena, found);
    };
    keep_better(place_by_start(kEndless));
    if (arena > peak_) keep_better(place_by_start(peak_));
    if (arena > peak_) keep_better(place_by_size());
    return arena;
  }

 private:
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  // Returns an offset at which `numel` elements overlap no stay in `taken`. These stays are sorted by offset
  // and may overlap each other if they are in memory at different times. Without a ceiling, returns the start
  // of the smallest gap that fits. With a ceiling, returns the highest offset that fits below the ceiling. If
  // no gap fits, returns the end of the last stay.
  int64_t find_gap(const std::vector<int>& taken, int64_t numel, int64_t ceiling = kEndless) const {
    int64_t end = 0;  // the largest end of the stays passed so far
    int64_t chosen = kNone;
    int64_t chosen_gap = kEndless;
    const auto consider = [&](int64_t next) {
      const int64_t gap = next - end;
      if (gap < numel || (ceiling == kEndless && gap >= chosen_gap)) return;
      chosen = ceiling == kEndless ? end : next - numel;
      chosen_gap = gap;
    };
    for (int index : taken) {
      consider(offsets_[index]);
      end = std::max(end, offsets_[index] + residencies_[index].numel);
    }
    if (ceiling < kEndless) consider(ceiling);
    return chosen == kNone ? end : chosen;
  }

  // Places stays in order of start, as an allocator at run time would. With a ceiling, every second stay is
  // placed from the ceiling downwards. This suits models whose consecutive uses share a bucket: the shared
  // bucket lies at one end of the arena, and the free memory is one piece.
  int64_t place_by_start(int64_t ceiling) {
    std::vector<int> taken;
    const auto offset_of = [&](int index) { return offsets_[index]; };
    int64_t arena = 0;
    for (int index = 0; index < count_; ++index) {
      const Stay& residency = residencies_[index];
      std::erase_if(taken, [&](int other) { return residencies_[other].release <= residency.start; });
      present_[index] = taken;
      int64_t present_numel = residency.numel;
      for (int other : taken) present_numel += residencies_[other].numel;
      peak_ = std::max(peak_, present_numel);
      offsets_[index] = find_gap(taken, residency.numel, index % 2 == 0 ? kEndless : ceiling);
      taken.insert(std::ranges::upper_bound(taken, offsets_[index], {}, offset_of), index);
      arena = std::max(arena, offsets_[index] + residency.numel);
    }
    return arena;
  }

  // Places the largest stays first, each in the smallest gap that fits. Needs `present_` from
  // place_by_start().
  int64_t place_by_size() {
    std::vector<int> order(count_);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](int index) { return residencies_[index].numel; });
    offsets_.assign(count_, kNone);
    const auto offset_of = [&](int index) { return offsets_[index]; };
    std::vector<int> taken;
    const auto take = [&](int other) {
      if (offsets_[other] != kNone) taken.push_back(other);
    };
    int64_t arena = 0;
    for (int index : order) {
      const Stay& residency = residencies_[index];
      taken.clear();
      std::ranges::for_each(present_[index], take);
      const auto meets = [&](int later) { return residencies_[later].start < residency.release; };
      for (int later = index + 1; later < count_ && meets(later); ++later) take(later);
      std::ranges::sort(taken, {}, offset_of);
      offsets_[index] = find_gap(taken, residency.numel);
      arena = std::max(arena, offsets_[index] + residency.numel);
    }
    return arena;
  }

  const std::vector<Stay>& residencies_;  // in order of start
  const int count_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<int>> present_;  // by stay: the earlier stays in memory when it starts
  int64_t peak_ = 0;  // the largest number of elements in memory at once: no arena can be smaller
};

// A candidate plan. Its arena may be larger than the limits allow.
struct Draft {
  std::vector<Stay> residencies;  // ordered by (use, bucket), which is also the order of starts
  std::vector<int64_t> offsets;
  int64_t arena_numel = std::numeric_limits<int64_t>::max();
};

// Returns the first draft whose arena is within the bound, or else the draft with the smallest arena.
// Fragmentation may make the arena larger than the buckets that are in memory at once. Then this function
// lowers max_live and, if that does not help, prefetch.
Draft draft_within_bound(const Trace& trace, const GatherLimits& limits) {
  const int64_t bound = std::max(limits.max_live, trace.largest_use) + limits.prefetch;
  GatherLimits lower = limits;
  Draft smallest;
  for (int quarters = limits.prefetch > 0 ? 4 : 0; quarters >= 0; --quarters) {
    lower.prefetch = limits.prefetch * quarters / 4;
    for (int sixteenths = limits.max_live > 0 ? 16 : 0; sixteenths >= 0; --sixteenths) {
      lower.max_live = limits.max_live * sixteenths / 16;
      Draft draft{.residencies = DemandPass(trace, lower).run(), .offsets = {}};
      start_early(trace, lower.prefetch, draft.residencies);
      draft.arena_numel = ArenaPacking(draft.residencies).run(trace, draft.offsets);
      if (draft.arena_numel < smallest.arena_numel) smallest = std::move(draft);
      if (smallest.arena_numel <= bound) return smallest;
    }
  }
  return smallest;
}

}  // namespace

GatherPlan plan_gathers(std::span<const std::vector<int>> uses, std::span<const int64_t> bucket_numel,
                        const GatherLimits& limits) {
  ZR_CHECK(limits.max_live >= 0 && limits.max_reuse_distance >= 0 && limits.prefetch >= 0,
           "a limit is negative");
  const Trace trace = study(uses, bucket_numel);
  GatherLimits useful = limits;  // a limit above the whole model has no effect, and sums must not overflow
  useful.max_live = std::min(limits.max_live, trace.total_numel);
  useful.prefetch = std::min(limits.prefetch, trace.total_numel);
  const Draft draft = draft_within_bound(trace, useful);
  GatherPlan plan;
  plan.steps.resize(uses.size());
  plan.arena_numel = draft.arena_numel;
  for (size_t i = 0; i < draft.residencies.size(); ++i) {
    const auto& [bucket, use, release, start, numel] = draft.residencies[i];
    std::vector<GatherPlan::Gather>& gathers = start == kInitial ? plan.initial : plan.steps[start].gathers;
    gathers.push_back({.bucket = bucket, .offset = draft.offsets[i], .use = use});
    if (release < trace.length()) plan.steps[release].releases.push_back(bucket);
    plan.gathered_numel += numel;
  }
  return plan;
}

}  // namespace zerorun
