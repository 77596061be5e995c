// Tests between which uses of a backward reductions start: for each sequence of uses the test gives the
// buckets that are due.
#include "zero/reduction_schedule.h"

#include <catch2/catch.hpp>
#include <string>

namespace zerorun::testing {
namespace {

using Numbers = std::vector<int>;

// Starts what is due, and returns it.
Numbers due(ReductionSchedule& schedule) {
  Numbers started;
  while (const auto bucket = schedule.due()) {
    schedule.note_start(*bucket);
    started.push_back(*bucket);
  }
  return started;
}

Numbers use(ReductionSchedule& schedule, const Numbers& buckets) {
  schedule.note_use(buckets);
  return due(schedule);
}

Numbers start_rest(ReductionSchedule& schedule) {
  Numbers started;
  while (const auto bucket = schedule.next()) {
    schedule.note_start(*bucket);
    started.push_back(*bucket);
  }
  return started;
}

Numbers finish(ReductionSchedule& schedule) {
  schedule.end_uses();
  const Numbers rest = start_rest(schedule);
  schedule.finish_backward();
  return rest;
}

// A backward with the uses {5}, {6}, {5}, after which buckets 2, 1 and none are started; then bucket 0.
void run_first(ReductionSchedule& schedule) {
  schedule.start_backward();
  CHECK(use(schedule, {5}).empty());
  schedule.note_start(2);
  CHECK(use(schedule, {6}).empty());
  schedule.note_start(1);
  CHECK(use(schedule, {5}).empty());
  CHECK_FALSE(schedule.is_known());
  CHECK(finish(schedule) == Numbers{0});
}

}  // namespace

TEST_CASE("reduction schedule: a backward with the same uses starts the same buckets at the same uses") {
  ReductionSchedule schedule({0, 1, 2});
  run_first(schedule);
  for (int round = 0; round < 2; ++round) {
    schedule.start_backward();
    CHECK(schedule.is_known());
    CHECK(use(schedule, {5}) == Numbers{2});
    CHECK(use(schedule, {6}) == Numbers{1});
    CHECK_FALSE(schedule.is_after_last_use());
    CHECK(schedule.is_new());
    CHECK(use(schedule, {5}).empty());
    CHECK(schedule.is_after_last_use());
    CHECK_FALSE(schedule.is_new());
    CHECK(finish(schedule) == Numbers{0});
  }
}

TEST_CASE("reduction schedule: from the first other use on nothing is due") {
  ReductionSchedule schedule({0, 1, 2});
  run_first(schedule);
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{2});
  CHECK(use(schedule, {7}).empty());
  CHECK_FALSE(schedule.is_known());
  CHECK(use(schedule, {5}).empty());
  schedule.note_start(1);
  CHECK(finish(schedule) == Numbers{0});

  // Both backwards are remembered now.
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{2});
  CHECK(use(schedule, {6}) == Numbers{1});
  CHECK(use(schedule, {5}).empty());
  CHECK(finish(schedule) == Numbers{0});
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{2});
  CHECK(use(schedule, {7}).empty());
  CHECK(use(schedule, {5}) == Numbers{1});
  CHECK(finish(schedule) == Numbers{0});
}

TEST_CASE(
    "reduction schedule: the order of the rest is the given one, then that of the remembered backward") {
  ReductionSchedule schedule({0, 1, 2, 3});
  schedule.set_order({3, 1, 0, 2});
  schedule.start_backward();
  CHECK(use(schedule, {5}).empty());
  schedule.note_start(0);
  CHECK(finish(schedule) == Numbers{3, 1, 2});
  schedule.set_order({0, 1, 2, 3});
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{0});
  CHECK(schedule.next() == 3);
  CHECK(finish(schedule) == Numbers{3, 1, 2});
}

TEST_CASE("reduction schedule: no use is the last one while a longer backward is remembered") {
  ReductionSchedule schedule({0, 1});
  schedule.start_backward();
  CHECK(finish(schedule) == Numbers{0, 1});  // a backward without uses
  schedule.start_backward();
  CHECK(schedule.is_after_last_use());
  schedule.start_backward();
  CHECK(use(schedule, {5}).empty());
  CHECK_FALSE(schedule.is_known());
  CHECK(finish(schedule) == Numbers{0, 1});
  schedule.start_backward();
  CHECK_FALSE(schedule.is_after_last_use());
  CHECK(finish(schedule) == Numbers{0, 1});
  schedule.start_backward();
  CHECK_FALSE(schedule.is_after_last_use());  // although the last backward had no uses
  CHECK(use(schedule, {5}).empty());
  CHECK(schedule.is_after_last_use());
  CHECK(finish(schedule) == Numbers{0, 1});
}

TEST_CASE("reduction schedule: uses before leave_backward() do not count, and forget() forgets everything") {
  ReductionSchedule schedule({0, 1, 2});
  run_first(schedule);
  CHECK(use(schedule, {9}).empty());
  schedule.leave_backward();
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{2});
  CHECK(use(schedule, {6}) == Numbers{1});
  CHECK(use(schedule, {5}).empty());
  CHECK(finish(schedule) == Numbers{0});
  schedule.forget();
  CHECK_FALSE(schedule.is_known());
  run_first(schedule);
}

// Otherwise a backward whose last uses are in autograd.grad() would be remembered without them, and the next
// one would start every reduction at its first use.
TEST_CASE("reduction schedule: an interrupted backward is neither known nor remembered") {
  ReductionSchedule schedule({0, 1, 2});
  schedule.start_backward();
  use(schedule, {5});
  schedule.interrupt();
  finish(schedule);
  CHECK_FALSE(schedule.is_after_last_use());
  run_first(schedule);

  schedule.start_backward();
  schedule.interrupt();
  CHECK(use(schedule, {5}).empty());
  CHECK_FALSE(schedule.is_known());
  CHECK(finish(schedule) == Numbers{0, 1, 2});
  schedule.start_backward();
  CHECK(use(schedule, {5}) == Numbers{2});
  CHECK(schedule.is_known());
}

TEST_CASE("reduction schedule: a backward may begin after its first uses") {
  ReductionSchedule schedule({0, 1, 2});
  run_first(schedule);
  schedule.note_use(Numbers{5});
  CHECK(schedule.due() == 2);
  schedule.start_backward();  // a plain backward whose first gradient comes now, or which a due bucket begins
  CHECK(due(schedule) == Numbers{2});
  CHECK(use(schedule, {6}) == Numbers{1});
}

TEST_CASE("reduction schedule: the latest eight kinds of backwards are remembered") {
  ReductionSchedule schedule({0});
  const auto run = [&](int kind) {
    schedule.start_backward();
    const bool known = use(schedule, {kind}) == Numbers{0};
    if (!known) schedule.note_start(0);
    CHECK(finish(schedule).empty());
    return known;
  };
  for (int kind = 0; kind < 8; ++kind) CHECK_FALSE(run(kind));
  for (int kind = 0; kind < 8; ++kind) CHECK(run(kind));
  CHECK_FALSE(run(8));  // instead of kind 0, which was used least recently
  for (int kind = 1; kind < 9; ++kind) CHECK(run(kind));
  CHECK_FALSE(run(0));
}

}  // namespace zerorun::testing
