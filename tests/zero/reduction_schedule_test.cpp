// Tests at which uses of a backward the ranks count which buckets are complete: for each sequence of uses the
// test gives the places.
#include "zero/reduction_schedule.h"

#include <catch2/catch.hpp>

namespace zerorun::testing {
namespace {

using Numbers = std::vector<int>;

// Returns whether the ranks count at the use. If they do, they start `complete`.
bool use(ReductionSchedule& schedule, int bucket, const Numbers& complete = {}) {
  schedule.note_use(Numbers{bucket});
  const bool counts = schedule.counts_here();
  for (const int started : complete) schedule.note_start(started);
  return counts;
}

void finish(ReductionSchedule& schedule, const Numbers& rest) {
  schedule.end_uses();
  for (const int started : rest) schedule.note_start(started);
  schedule.finish_backward();
}

// A backward with the uses {5}, {6}, {5}. Buckets 2 and 1 are started at the first two, bucket 0 at the end.
void run_first(ReductionSchedule& schedule) {
  schedule.start_backward();
  CHECK(use(schedule, 5, {2}));
  CHECK(use(schedule, 6, {1}));
  CHECK(use(schedule, 5));
  CHECK_FALSE(schedule.is_known());
  finish(schedule, {0});
}

}  // namespace

TEST_CASE("reduction schedule: a backward with the same uses counts where buckets were started") {
  ReductionSchedule schedule(3);
  run_first(schedule);
  for (int round = 0; round < 2; ++round) {
    schedule.start_backward();
    CHECK(schedule.is_known());
    CHECK(use(schedule, 5, {2}));
    CHECK(use(schedule, 6, {1}));
    CHECK(schedule.is_new());
    CHECK_FALSE(use(schedule, 5));
    CHECK_FALSE(schedule.is_new());
    finish(schedule, {0});
  }
}

TEST_CASE("reduction schedule: a bucket that is late once is started at a later count, and keeps its place") {
  ReductionSchedule schedule(3);
  run_first(schedule);
  schedule.start_backward();
  CHECK(use(schedule, 5));
  CHECK(use(schedule, 6, {2, 1}));
  CHECK_FALSE(use(schedule, 5));
  finish(schedule, {0});
  schedule.start_backward();
  CHECK(use(schedule, 5, {2, 1}));
  CHECK_FALSE(use(schedule, 6));  // nothing is left that was started here
  CHECK_FALSE(use(schedule, 5));
  finish(schedule, {0});
}

TEST_CASE("reduction schedule: from the first other use on each use counts") {
  ReductionSchedule schedule(3);
  run_first(schedule);
  schedule.start_backward();
  CHECK(use(schedule, 5, {2}));
  CHECK(use(schedule, 7));
  CHECK_FALSE(schedule.is_known());
  CHECK(use(schedule, 5, {1}));
  CHECK(use(schedule, 8));
  finish(schedule, {0});

  // Both backwards are remembered now.
  schedule.start_backward();
  CHECK(use(schedule, 5, {2}));
  CHECK(use(schedule, 6, {1}));
  CHECK_FALSE(use(schedule, 5));
  finish(schedule, {0});
  schedule.start_backward();
  CHECK(use(schedule, 5, {2}));
  CHECK_FALSE(use(schedule, 7));
  CHECK(use(schedule, 5, {1}));
  CHECK_FALSE(use(schedule, 8));
  CHECK(use(schedule, 8));  // one more than in any other backward
  finish(schedule, {0});
}

TEST_CASE("reduction schedule: uses before leave_backward() do not count") {
  ReductionSchedule schedule(3);
  run_first(schedule);
  CHECK(use(schedule, 9));
  schedule.leave_backward();
  schedule.start_backward();
  CHECK(use(schedule, 5, {2}));
  CHECK(use(schedule, 6, {1}));
  CHECK_FALSE(use(schedule, 5));
}

TEST_CASE("reduction schedule: a backward may begin after its first uses") {
  ReductionSchedule schedule(3);
  run_first(schedule);
  CHECK(use(schedule, 5));
  schedule.start_backward();  // a plain backward whose first gradient comes now
  CHECK(use(schedule, 6, {1, 2}));
  CHECK_FALSE(use(schedule, 5));
}

TEST_CASE("reduction schedule: the latest eight kinds of backwards are remembered") {
  ReductionSchedule schedule(1);
  const auto run = [&](int kind) {
    schedule.start_backward();
    use(schedule, kind, {0});
    const bool known = schedule.is_known();
    finish(schedule, {});
    return known;
  };
  for (int kind = 0; kind < 8; ++kind) CHECK_FALSE(run(kind));
  for (int kind = 0; kind < 8; ++kind) CHECK(run(kind));
  CHECK_FALSE(run(8));  // instead of kind 0, which was used least recently
  for (int kind = 1; kind < 9; ++kind) CHECK(run(kind));
  CHECK_FALSE(run(0));
}

}  // namespace zerorun::testing
