// Tests the order in which the buckets' reductions start: for each order in which gradients arrive, the test
// gives the expected order of buckets. A bucket departs when its reduction starts.
#include "zero/reduction_plan.h"

#include <catch2/catch.hpp>

#include "tests/zero/rank_state.h"

namespace zerorun::testing {
namespace {

// Four parameters of one element, each in a bucket of its own: bucket b holds parameter 3 - b.
const std::vector<ParameterSpec> kFour = {{{1}}, {{1}}, {{1}}, {{1}}};

std::string text(const std::vector<int>& numbers) {
  return c10::str(numbers);
}

void expect_order(const std::vector<int>& found, const std::vector<int>& expected, const std::string& what) {
  expect(found == expected, what + ": " + text(found) + ", not " + text(expected));
}

// Takes buckets as long as the next one in order is complete.
std::vector<int> take_complete(ReductionPlan& plan) {
  std::vector<int> taken;
  while (const auto bucket = plan.take_complete()) taken.push_back(*bucket);
  return taken;
}

std::vector<int> take_rest(ReductionPlan& plan) {
  std::vector<int> taken;
  while (const auto bucket = plan.take()) taken.push_back(*bucket);
  return taken;
}

// Runs a backward in which the gradients of these buckets arrive and no bucket is taken.
void backward(ReductionPlan& plan, const std::vector<int>& arrivals) {
  plan.start_backward();
  for (const int bucket : arrivals) plan.note_gradient(3 - bucket);
  plan.finish_backward();
}

}  // namespace

TEST_CASE("departure plan: without a plan, complete buckets depart in order from the last parameter") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    RankState state(kFour, communicator, {});
    ReductionPlan plan(state.store, state.buckets);
    expect(!plan.made(), "a plan before make()");
    plan.start_backward();
    expect_order(take_complete(plan), {}, "nothing has arrived");
    plan.note_gradient(3 - 1);
    expect_order(take_complete(plan), {}, "bucket 1 waits for bucket 0");
    plan.note_gradient(3 - 3);
    plan.note_gradient(3 - 0);
    expect_order(take_complete(plan), {0, 1}, "bucket 3 waits for bucket 2");
    expect_order(take_rest(plan), {2, 3}, "the rest, whatever it has");
    expect(!plan.take() && !plan.take_complete(), "all have departed");
    plan.finish_backward();
    plan.begin_again();
    plan.start_backward();
    expect_order(take_complete(plan), {}, "arrivals of the backward before do not count");
    expect_order(take_rest(plan), {0, 1, 2, 3}, "once more");
  });
}

TEST_CASE("departure plan: without a plan, a bucket with the first and last parameters delays no others") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    RankState state({{{1}, false, 1}, {{1}}, {{1}}, {{1}, false, 1}}, communicator, {}, 1000);
    expect(state.store.layout(0).parameters == std::vector{3, 0}, "the test needs that as bucket 0");
    ReductionPlan plan(state.store, state.buckets);
    plan.start_backward();
    plan.note_gradient(3);
    plan.note_gradient(2);
    expect_order(take_complete(plan), {}, "parameter 1 is missing");
    plan.note_gradient(1);
    expect_order(take_complete(plan), {1}, "parameters 2 and 1 are there");
    plan.note_gradient(0);
    expect_order(take_complete(plan), {0}, "all are there");
  });
}

TEST_CASE("departure plan: a bucket is complete when each of its parameters has a gradient") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    // There is one bucket, which holds parameters 2, 1 and 0.
    RankState state({{{1}}, {{1}}, {{1}}}, communicator, {}, 1000);
    expect(state.store.count() == 1, "the test needs one bucket");
    ReductionPlan plan(state.store, state.buckets);
    plan.start_backward();
    plan.note_gradient(0);
    plan.note_gradient(2);
    plan.note_gradient(2);  // does not count for the missing parameter 1
    expect_order(take_complete(plan), {}, "parameter 1 is missing");
    plan.note_gradient(1);
    expect_order(take_complete(plan), {0}, "all are there");
  });
}

TEST_CASE("departure plan: frozen buckets are not in the plan") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    RankState state({{{1}}, {{1}}, {{1}, false, kFrozen}}, communicator, {});
    expect(state.store.count() == 3, "the test needs three buckets");
    ReductionPlan plan(state.store, state.buckets);
    plan.start_backward();
    expect_order(take_rest(plan), {0, 1}, "trained buckets only");
  });
}

TEST_CASE("departure plan: all ranks use the order in which buckets were complete on rank 0") {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    check_on_ranks(ranks, false, [](Communicator& communicator) {
      RankState state(kFour, communicator, {});
      ReductionPlan plan(state.store, state.buckets);
      const std::vector<std::vector<int>> orders = {{2, 0, 3, 1}, {0, 1, 2, 3}, {3, 2, 1, 0}};
      backward(plan, orders[communicator.rank()]);
      plan.make(communicator);
      expect(plan.made(), "no plan");
      plan.begin_again();
      plan.start_backward();
      for (const int bucket : {0, 3}) plan.note_gradient(3 - bucket);
      expect_order(take_complete(plan), {}, "it is bucket 2's turn");
      plan.note_gradient(3 - 2);
      expect_order(take_complete(plan), {2, 0, 3}, "bucket 1 is missing");
      plan.note_gradient(3 - 1);
      expect_order(take_complete(plan), {1}, "the last one");
    });
  }
}

TEST_CASE("departure plan: a bucket completes with the last gradient of its parameters") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    // Bucket 0 holds parameters 3 and 2, bucket 1 holds parameters 1 and 0.
    RankState state(kFour, communicator, {}, 2 * kAlignment);
    expect(state.store.count() == 2, "the test needs two buckets");
    ReductionPlan plan(state.store, state.buckets);
    plan.start_backward();
    for (const int parameter : {3, 1, 0, 2}) plan.note_gradient(parameter);
    plan.finish_backward();
    plan.make(communicator);
    expect_order(take_rest(plan), {1, 0}, "bucket 0 began first and was complete last");
  });
}

TEST_CASE("departure plan: buckets that a rank did not use, or used twice, depart last") {
  struct Scenario {
    std::string name;
    std::vector<std::vector<int>> arrivals;  // by rank
    std::vector<int> order;                  // the expected order of departure
  };
  const std::vector<Scenario> scenarios = {
      {"unused on rank 1", {{3, 2, 1, 0}, {3, 1, 0}}, {3, 1, 0, 2}},
      {"unused on rank 0", {{3, 1, 0}, {3, 2, 1, 0}}, {3, 1, 0, 2}},
      {"unused everywhere", {{1, 0, 3}, {3, 0, 1}}, {1, 0, 3, 2}},
      {"used twice on rank 1", {{3, 2, 1, 0}, {3, 3, 2, 1, 0}}, {2, 1, 0, 3}},
      {"used twice on rank 0", {{1, 0, 1, 2, 3}, {3, 2, 1, 0}}, {0, 2, 3, 1}},
      // Rank 0's order also decides among the buckets that depart last. Among these, buckets that rank 0 did
      // not use come after buckets that it used.
      {"one of each", {{2, 0, 3, 1}, {2, 2, 0, 3}}, {0, 3, 2, 1}},
      {"unused on rank 0 and twice on rank 1", {{3, 1, 0}, {3, 3, 2, 1, 0}}, {1, 0, 3, 2}},
      {"rank 0 used nothing", {{}, {3, 2, 1, 0}}, {0, 1, 2, 3}},
  };
  for (const Scenario& scenario : scenarios) {
    INFO(scenario.name);
    check_on_ranks(2, false, [&](Communicator& communicator) {
      RankState state(kFour, communicator, {});
      ReductionPlan plan(state.store, state.buckets);
      backward(plan, scenario.arrivals[communicator.rank()]);
      plan.make(communicator);
      expect_order(take_rest(plan), scenario.order, scenario.name);
    });
  }
}

TEST_CASE("departure plan: a bucket expects the largest number of gradients that it got in one backward") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    RankState state(kFour, communicator, {});
    ReductionPlan plan(state.store, state.buckets);
    plan.start_backward();
    for (const int bucket : {0, 0, 0, 1}) plan.note_gradient(3 - bucket);
    expect_order(take_complete(plan), {0, 1}, "one gradient is expected at first");
    plan.finish_backward();

    for (int round = 0; round < 2; ++round) {
      plan.begin_again();
      plan.start_backward();
      plan.note_gradient(3 - 0);
      plan.note_gradient(3 - 1);
      plan.note_gradient(3 - 0);
      expect_order(take_complete(plan), {}, "two of three");
      plan.note_gradient(3 - 0);
      expect_order(take_complete(plan), {0, 1}, "all three");
      plan.finish_backward();

      // A backward with fewer gradients does not lower the expected number of gradients. The bucket departs
      // when backward ends.
      plan.begin_again();
      backward(plan, {0});
      expect_order(take_complete(plan), {}, "one of three");
      expect_order(take_rest(plan), {0, 1, 2, 3}, "what is left when backward ends");
    }
  });
}

}  // namespace zerorun::testing
