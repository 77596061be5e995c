#include "tests/zero/gather_simulator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

namespace zerorun {

int64_t GatherCase::total() const {
  return std::accumulate(numel.begin(), numel.end(), int64_t{0});
}

int64_t GatherCase::size(const std::vector<int>& buckets) const {
  int64_t sum = 0;
  for (int bucket : buckets) sum += numel[bucket];
  return sum;
}

int64_t GatherCase::bound() const {
  int64_t largest = 0;
  for (const std::vector<int>& use : uses) largest = std::max(largest, size(use));
  return std::max(limits.max_live, largest) + limits.prefetch;
}

std::string GatherCase::text() const {
  std::ostringstream out;
  out << "max_live " << limits.max_live << ", max_reuse_distance " << limits.max_reuse_distance
      << ", prefetch " << limits.prefetch << ", sizes";
  for (int64_t each : numel) out << " " << each;
  out << ", uses";
  for (const std::vector<int>& use : uses) {
    out << " {";
    for (int bucket : use) out << " " << bucket;
    out << " }";
  }
  return out.str();
}

namespace {

class Simulator {
 public:
  Simulator(const GatherCase& input, const GatherPlan& plan, bool all_equal)
      : case_(input), plan_(plan), all_equal_(all_equal), positions_(input.numel.size()) {
    for (int k = 0; k < static_cast<int>(case_.uses.size()); ++k) {
      for (int bucket : case_.uses[k]) positions_[bucket].push_back(k);
    }
  }

  std::string run() {
    expect(plan_.steps.size() == case_.uses.size(), "a step for each use");
    if (!wrong_.empty()) return wrong_;
    gather(plan_.initial, -1);
    for (int k = 0; k < static_cast<int>(case_.uses.size()) && wrong_.empty(); ++k) {
      release(plan_.steps[k].releases, k);
      gather(plan_.steps[k].gathers, k);
      use(k);
    }
    expect(gathered_ == plan_.gathered_numel, "gathered_numel is the sum");
    expect(top_ == plan_.arena_numel, "the arena ends where the topmost bucket does");
    return wrong_;
  }

 private:
  struct Held {
    int64_t offset;
    int use;                  // index of the use for which the bucket was gathered
    int64_t used_until = -1;  // value of used_ after its latest use; -1: not used yet
  };

  void expect(bool holds, const std::string& what) {
    if (!holds && wrong_.size() < 500) wrong_ += (wrong_.empty() ? "not so: " : "; ") + what;
  }

  // The bucket's first use at or after step k; the number of uses if there is none.
  int next_use(int bucket, int k) const {
    const auto found = std::lower_bound(positions_[bucket].begin(), positions_[bucket].end(), k);
    return found == positions_[bucket].end() ? static_cast<int>(case_.uses.size()) : *found;
  }

  bool needed(int bucket, int k) const { return next_use(bucket, k) == k; }

  // The number of elements in gathered buckets. If `live`, counts the buckets that were gathered for use `k`
  // or an earlier use. Otherwise counts those gathered for later uses.
  int64_t held_numel(int k, bool live) const {
    int64_t sum = 0;
    for (const auto& [bucket, held] : held_) sum += (held.use <= k) == live ? case_.numel[bucket] : 0;
    return sum;
  }

  void release(const std::vector<int>& buckets, int k) {
    std::vector<int> evicted;
    for (int bucket : buckets) {
      const std::string name =
          "at " + std::to_string(k) + ", released bucket " + std::to_string(bucket) + " ";
      expect(held_.count(bucket) == 1, name + "is there");
      expect(held_.count(bucket) == 1 && held_[bucket].used_until >= 0, name + "was used");
      expect(!needed(bucket, k), name + "is not needed by this use");
      const int next = next_use(bucket, k);
      if (next < static_cast<int>(case_.uses.size()) && !too_far(bucket, k, next)) evicted.push_back(bucket);
      held_.erase(bucket);
      released_at_[bucket] = k;
    }
    if (all_equal_) check_evictions(evicted, k);
  }

  bool too_far(int bucket, int from, int next) {
    int64_t distance = used_ - held_[bucket].used_until;
    for (int k = from; k < next; ++k) distance += case_.size(case_.uses[k]);
    return distance > case_.limits.max_reuse_distance;
  }

  void check_evictions(const std::vector<int>& evicted, int k) {
    int64_t missing = 0;
    for (int bucket : case_.uses[k]) {
      const auto found = held_.find(bucket);
      missing += found == held_.end() || found->second.use == k ? case_.numel[bucket] : 0;
    }
    for (int bucket : evicted) {
      const std::string name = "at " + std::to_string(k) + ", evicted bucket " + std::to_string(bucket) + " ";
      expect(held_numel(k - 1, true) + missing + case_.numel[bucket] > case_.limits.max_live,
             name + "had to go");
      for (const auto& [other, held] : held_) {
        const bool other_stays = held.use < k && !needed(other, k);
        expect(!other_stays || next_use(other, k) <= next_use(bucket, k), name + "is used furthest ahead");
      }
    }
  }

  void gather(const std::vector<GatherPlan::Gather>& gathers, int k) {
    const int64_t ahead_before = ahead_;
    bool first = true;
    for (const GatherPlan::Gather& gather : gathers) {
      const std::string name =
          "at " + std::to_string(k) + ", gathered bucket " + std::to_string(gather.bucket) + " ";
      const int64_t numel = case_.numel[gather.bucket];
      const int64_t end = gather.offset + numel;
      expect(held_.count(gather.bucket) == 0, name + "is not there twice");
      expect(gather.use >= k && needed(gather.bucket, gather.use), name + "is for a use of it to come");
      expect(latest_ < std::pair(gather.use, gather.bucket), name + "keeps the order of use");
      const auto released = released_at_.find(gather.bucket);
      const int free_from = released == released_at_.end() ? -1 : released->second + 1;
      expect(k >= free_from, name + "was not released in this step");
      expect(gather.offset >= 0 && gather.offset % 16 == 0, name + "is aligned");
      for (const auto& [other, held] : held_) {
        expect(end <= held.offset || held.offset + case_.numel[other] <= gather.offset,
               name + "overlaps bucket " + std::to_string(other));
      }
      if (all_equal_ && first && k > -1) {
        expect(k == free_from || ahead_before + numel > case_.limits.prefetch, name + "starts early");
      }
      first = false;
      latest_ = {gather.use, gather.bucket};
      held_[gather.bucket] = {.offset = gather.offset, .use = gather.use};
      gathered_ += numel;
      top_ = std::max(top_, end);
    }
    ahead_ = held_numel(k, false);
    expect(ahead_ <= case_.limits.prefetch, "at " + std::to_string(k) + ", prefetch");
  }

  void use(int k) {
    const std::string name = "at " + std::to_string(k) + ", ";
    const int64_t numel = case_.size(case_.uses[k]);
    expect(held_numel(k, true) <= std::max(case_.limits.max_live, numel), name + "live");
    for (int bucket : case_.uses[k]) {
      const auto found = held_.find(bucket);
      expect(found != held_.end() && found->second.use <= k, name + std::to_string(bucket) + " is there");
      if (found == held_.end()) continue;
      const int64_t used_until = found->second.used_until;
      expect(used_until < 0 || used_ - used_until <= case_.limits.max_reuse_distance,
             name + "reuse distance");
      found->second.used_until = used_ + numel;
    }
    for (const auto& [bucket, held] : held_) {
      expect(next_use(bucket, k) < static_cast<int>(case_.uses.size()),
             name + std::to_string(bucket) + " is of use still");
    }
    used_ += numel;
  }

  const GatherCase& case_;
  const GatherPlan& plan_;
  const bool all_equal_;
  std::vector<std::vector<int>> positions_;  // by bucket: positions of its uses
  std::map<int, Held> held_;
  std::map<int, int> released_at_;
  std::pair<int, int> latest_ = {-1, -1};  // (use, bucket) of the gather started last
  int64_t ahead_ = 0;                      // elements gathered ahead of their use, after the previous step
  int64_t used_ = 0;
  int64_t gathered_ = 0;
  int64_t top_ = 0;
  std::string wrong_;
};

}  // namespace

std::string simulate(const GatherCase& input, const GatherPlan& plan, bool all_equal) {
  return Simulator(input, plan, all_equal).run();
}

}  // namespace zerorun
