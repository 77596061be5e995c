// Tests how long a record of uses may become.
#include "zero/gather_trace.h"

#include <catch2/catch.hpp>
#include <vector>

namespace zerorun {
namespace {

constexpr int kUses = 100'000;
const std::vector<int64_t> kNumel(50, 10);
const GatherLimits kLimits{.max_live = 100, .max_reuse_distance = 1000, .prefetch = 30};

void run_iteration(GatherTrace& trace, int uses) {
  for (int use = 0; use < uses; ++use) {
    const int buckets[] = {use % 50};
    if (!trace.follow(buckets)) trace.record(buckets, "");
  }
  trace.finish(kNumel, kLimits);
}

}  // namespace

TEST_CASE("An iteration whose end is certain is planned whole, however many uses it has") {
  GatherTrace trace;
  trace.set_ends_surely(true);
  run_iteration(trace, kUses);
  CHECK(trace.plan().steps.size() == kUses);
  run_iteration(trace, kUses);
  CHECK(trace.departures() == 0);
}

TEST_CASE("A record of an iteration that nothing ends does not grow forever") {
  GatherTrace trace;
  run_iteration(trace, kUses);
  CHECK(trace.plan().steps.size() < kUses / 2);
}

}  // namespace zerorun
