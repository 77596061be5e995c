// Tests gather plans. A simulator that knows the rules but not the planner executes each plan. Small cases
// are also compared with plans made by hand and with an exhaustive search.
#include "zero/gather_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <sstream>
#include <string>

#include "base/error.h"
#include "tests/zero/gather_simulator.h"

namespace zerorun {
namespace {

constexpr int64_t kNoLimit = GatherLimits::kNoLimit;

using Uses = std::vector<std::vector<int>>;

void check(const GatherCase& input, const GatherPlan& plan, bool all_equal = false) {
  const std::string wrong = simulate(input, plan, all_equal);
  if (wrong.empty()) return;
  INFO(input.text());
  FAIL_CHECK(wrong);
}

// The plan as text, such as "start +0 +1, 0 +2, 1 -0": the step in which each bucket is gathered (+) or
// released (-). Releases are in ascending order, and empty steps are left out.
std::string text(const GatherPlan& plan) {
  std::ostringstream out;
  const auto write = [&](const std::string& when, std::vector<int> releases, const auto& gathers) {
    if (releases.empty() && gathers.empty()) return;
    out << (out.tellp() > 0 ? ", " : "") << when;
    std::sort(releases.begin(), releases.end());
    for (int bucket : releases) out << " -" << bucket;
    for (const GatherPlan::Gather& gather : gathers) out << " +" << gather.bucket;
  };
  write("start", {}, plan.initial);
  for (size_t k = 0; k < plan.steps.size(); ++k) {
    write(std::to_string(k), plan.steps[k].releases, plan.steps[k].gathers);
  }
  return out.str();
}

// The uses of one iteration: a forward over all buckets and a backward. If `tied`, bucket 0 is also used
// between them, like an embedding that is also the head. If `straddling`, some operators use two neighbouring
// buckets at once.
GatherCase sweep_case(std::vector<int64_t> numel, bool tied, bool straddling) {
  GatherCase result;
  const int last = static_cast<int>(numel.size()) - 1;
  const auto add = [&](int bucket, int neighbour) {
    result.uses.push_back({bucket});
    result.uses.push_back({bucket});
    if (straddling && neighbour >= 0 && neighbour <= last) {
      result.uses.push_back({std::min(bucket, neighbour), std::max(bucket, neighbour)});
    }
  };
  for (int bucket = 0; bucket <= last; ++bucket) add(bucket, bucket + 1);
  if (tied) result.uses.insert(result.uses.end(), {{0}, {0}});
  for (int bucket = last; bucket >= 0; --bucket) add(bucket, bucket - 1);
  result.numel = std::move(numel);
  return result;
}

std::vector<int64_t> random_sizes(std::mt19937& random, int count, int smallest, int largest) {
  std::vector<int64_t> sizes(count);
  for (int64_t& size : sizes) size = 16 * (smallest + static_cast<int>(random() % (largest - smallest + 1)));
  return sizes;
}

// Returns the fewest possible gathers if each use needs one bucket and memory has room for `room` buckets.
// Found by an exhaustive search over the buckets that stay in memory at each use.
int fewest_gathers(const Uses& uses, int buckets, int room) {
  constexpr int kNever = 1 << 20;
  std::vector<int> cost(1 << buckets, kNever);  // by the bit set of the buckets in memory
  cost[0] = 0;
  for (const std::vector<int>& use : uses) {
    const int needed = 1 << use[0];
    std::vector<int> after(cost.size(), kNever);
    for (int there = 0; there < static_cast<int>(cost.size()); ++there) {
      for (int kept = there;; kept = (kept - 1) & there) {
        const int with = kept | needed;
        const int gathers = cost[there] + ((kept & needed) == 0 ? 1 : 0);
        if (__builtin_popcount(with) <= room) after[with] = std::min(after[with], gathers);
        if (kept == 0) break;
      }
    }
    cost = after;
  }
  return *std::min_element(cost.begin(), cost.end());
}

}  // namespace

TEST_CASE("gather schedule: plans made by hand") {
  struct Example {
    std::string name;
    GatherCase input;
    std::string plan;
  };
  const std::vector<Example> examples = {
      {"no uses", {{}, {16}, {}}, ""},
      {"uses of nothing", {{{}, {0}, {}}, {16}, {0, 0, 0}}, "1 +0, 2 -0"},
      {"stays at the reuse distance", {{{0}, {1}, {0}}, {16, 16}, {100, 16, 0}}, "0 +0, 1 +1, 2 -1"},
      {"goes beyond it", {{{0}, {1}, {0}}, {16, 16}, {100, 15, 0}}, "0 +0, 1 -0 +1, 2 -1 +0"},
      {"used twice in a row", {{{0}, {}, {0}, {1}}, {16, 16}, {100, 0, 0}}, "0 +0, 3 -0 +1"},
      {"the furthest use goes",
       {{{0}, {1}, {2}, {1}, {0}}, {16, 16, 16}, {32, kNoLimit, 0}},
       "0 +0, 1 +1, 2 -0 +2, 3 -2, 4 -1 +0"},
      {"of equals the larger, then the higher number",
       {{{0, 1, 2}, {3}, {0, 1, 2}}, {16, 32, 32, 16}, {80, kNoLimit, 0}},
       "0 +0 +1 +2, 1 -2 +3, 2 -3 +2"},
      {"an operand set above max_live is cut down again",
       {{{0, 1, 2}, {1}, {0, 2}}, {16, 16, 16}, {16, kNoLimit, 0}},
       "0 +0 +1 +2, 1 -0 -2, 2 -1 +0 +2"},
      {"as early as prefetch allows",
       {{{0}, {1}, {2}, {3}}, {16, 16, 16, 16}, {100, 0, 32}},
       "start +0 +1, 0 +2, 1 -0 +3, 2 -1, 3 -2"},
      {"what does not fit ahead holds up the rest",
       {{{0}, {1}, {2}}, {16, 64, 16}, {100, 0, 32}},
       "start +0, 1 -0 +1 +2, 2 -1"},
      {"not in the step of its release",
       {{{0}, {1}, {2}, {0}}, {16, 16, 16}, {100, 0, 100}},
       "start +0 +1 +2, 1 -0, 2 -1 +0, 3 -2"},
      {"limits that add up past the range",
       {{{0}, {1}, {0}}, {16, 16}, {kNoLimit, kNoLimit, kNoLimit}},
       "start +0 +1, 2 -1"},
  };
  for (const Example& example : examples) {
    INFO(example.name);
    const GatherPlan plan = example.input.plan();
    CHECK(text(plan) == example.plan);
    check(example.input, plan);
  }
}

TEST_CASE("gather schedule: a use of unknown or unordered buckets is refused") {
  const std::vector<int64_t> numel = {16, 16};
  for (const Uses& uses : {Uses{{2}}, Uses{{-1}}, Uses{{1, 0}}, Uses{{0, 0}}}) {
    CHECK_THROWS_AS(plan_gathers(uses, numel, {}), InternalError);
  }
  CHECK_THROWS_AS(plan_gathers(Uses{{0}}, numel, {.max_live = -1}), InternalError);
}

TEST_CASE("gather schedule: forward and backward sweeps keep to every limit") {
  std::mt19937 random(7);
  for (int variant = 0; variant < 24; ++variant) {
    const bool tied = variant % 2 == 0;
    const bool straddling = variant / 2 % 2 == 0;
    const int kind = variant / 4 % 3;  // sizes: all equal, one large bucket first, or arbitrary
    std::vector<int64_t> numel = random_sizes(random, 6 + variant,
                                              kind == 0   ? 10
                                              : kind == 1 ? 9
                                                          : 1,
                                              kind == 0   ? 10
                                              : kind == 1 ? 12
                                                          : 50);
    if (kind == 1) numel[0] *= 8;
    GatherCase input = sweep_case(numel, tied, straddling);
    const int64_t total = input.total();
    for (int eighths = 0; eighths <= 9; ++eighths) {
      for (int64_t distance : {int64_t{0}, total / 3, kNoLimit}) {
        for (int64_t prefetch : {int64_t{0}, numel[1], total / 4}) {
          input.limits = {total * eighths / 8, distance, prefetch};
          const GatherPlan plan = input.plan();
          check(input, plan, kind == 0);
          INFO(input.text());
          CHECK(plan.arena_numel <= input.bound());
          CHECK(plan.gathered_numel <= 2 * total + (tied ? numel[0] : 0));
          if (eighths >= 8 && distance == kNoLimit) CHECK(plan.gathered_numel == total);
        }
      }
    }
  }
}

TEST_CASE("gather schedule: backward gathers again exactly the buckets that max_live could not keep") {
  for (int room = 0; room <= 12; ++room) {
    GatherCase input = sweep_case(std::vector<int64_t>(10, 32), false, false);
    input.limits = {32 * room, kNoLimit, 0};
    const GatherPlan plan = input.plan();
    CHECK(plan.gathered_numel == 32 * (20 - std::clamp(room, 1, 10)));
    CHECK(plan.arena_numel == 32 * std::clamp(room, 1, 10));
    check(input, plan, true);
  }
}

TEST_CASE("gather schedule: if operators use two buckets at once, the arena is as large as the largest use") {
  GatherCase input = sweep_case({160, 80, 80, 144, 16, 224, 16, 160}, false, true);
  input.limits = {0, kNoLimit, 0};
  const GatherPlan plan = input.plan();
  CHECK(plan.arena_numel == 240);
  check(input, plan);
}

TEST_CASE("gather schedule: the arena is never larger than the model") {
  // A search found this case. The model has 2704 elements, but the arena would need 2736 if buckets were
  // placed one by one, ordered by start or by size.
  GatherCase input{.uses = {}, .numel = {528, 160, 624, 288, 80, 528, 496}, .limits = {2704, 792, 2042}};
  for (int bucket : {0, 3, 4, 5, 5, 3, 6, 3, 6, 0, 4, 5, 1, 2, 5, 5, 4, 5, 0}) input.uses.push_back({bucket});
  const GatherPlan plan = input.plan();
  CHECK(plan.arena_numel <= 2704);
  check(input, plan);
}

TEST_CASE("gather schedule: as few gathers as an exhaustive search finds") {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const int buckets = 2 + static_cast<int>(random() % 5);
    const int room = static_cast<int>(random() % (buckets + 1));
    GatherCase input;
    input.numel.assign(buckets, 16);
    input.limits = {16 * room, kNoLimit, 0};
    for (int length = 1 + static_cast<int>(random() % 40); length > 0; --length) {
      input.uses.push_back({static_cast<int>(random() % buckets)});
    }
    const GatherPlan plan = input.plan();
    check(input, plan, true);
    INFO(input.text());
    CHECK(plan.gathered_numel == 16 * fewest_gathers(input.uses, buckets, std::max(room, 1)));
  }
}

TEST_CASE("gather schedule: with room for everything, the reuse distance alone decides") {
  std::mt19937 random(13);
  for (int round = 0; round < 100; ++round) {
    GatherCase input;
    input.numel = random_sizes(random, 8, 1, 40);
    for (int length = 0; length < 40; ++length) input.uses.push_back({static_cast<int>(random() % 8)});
    input.limits = {input.total(), static_cast<int64_t>(random() % input.total()), 0};
    int64_t expected = 0;
    for (int k = 0; k < 40; ++k) {
      const int bucket = input.uses[k][0];
      int64_t distance = 0;
      int before = k - 1;
      for (; before >= 0 && input.uses[before][0] != bucket; --before)
        distance += input.size(input.uses[before]);
      if (before < 0 || distance > input.limits.max_reuse_distance) expected += input.numel[bucket];
    }
    const GatherPlan plan = input.plan();
    check(input, plan);
    INFO(input.text());
    CHECK(plan.gathered_numel == expected);
    CHECK(plan.arena_numel <= input.total());
  }
}

TEST_CASE("gather schedule: random traces keep to every limit") {
  std::mt19937 random(5);
  constexpr int kRounds = 600;
  int past_bound = 0;
  for (int round = 0; round < kRounds; ++round) {
    const bool all_equal = round % 3 == 0;
    GatherCase input;
    const int buckets = 2 + static_cast<int>(random() % 12);
    input.numel = random_sizes(random, buckets, all_equal ? 4 : 1, all_equal ? 4 : 40);
    const int width = static_cast<int>(random() % 4);
    for (int length = static_cast<int>(random() % 60); length >= 0; --length) {
      input.uses.emplace_back();
      for (int bucket = 0; bucket < buckets; ++bucket) {
        if (static_cast<int>(random() % buckets) <= width) input.uses.back().push_back(bucket);
      }
    }
    const int64_t total = input.total();
    input.limits.max_live = static_cast<int64_t>(random() % (total + 1));
    input.limits.max_reuse_distance =
        random() % 2 == 0 ? kNoLimit : static_cast<int64_t>(random() % (2 * total));
    input.limits.prefetch = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % (total / 2 + 1));
    const GatherPlan plan = input.plan();
    check(input, plan, all_equal);
    if (plan.arena_numel <= input.bound()) continue;
    // The bound cannot always be met. If uses share some of their buckets and the buckets differ in size,
    // there may be no placement that fits.
    ++past_bound;
    INFO(input.text());
    CHECK_FALSE(all_equal);
    CHECK(plan.arena_numel <= input.bound() * 5 / 4);
  }
  CAPTURE(past_bound);
  CHECK(past_bound * 100 <= kRounds);
}

TEST_CASE("gather schedule: a long trace of a large model") {
  std::mt19937 random(3);
  const GatherCase once = sweep_case(random_sizes(random, 300, 1, 100), true, true);
  GatherCase input{.uses = {}, .numel = once.numel, .limits = {}};
  while (input.uses.size() < 20000) input.uses.insert(input.uses.end(), once.uses.begin(), once.uses.end());
  const int64_t total = input.total();
  input.limits = {total / 2, kNoLimit, total / 20};
  const GatherPlan plan = input.plan();
  check(input, plan);
  CHECK(plan.arena_numel <= input.bound());
}

}  // namespace zerorun
