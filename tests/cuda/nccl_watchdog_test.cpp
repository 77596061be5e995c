// Tests the watchdog of collectives with a fake clock and fake collectives, which start and end on command.
#include "cuda/nccl_watchdog.h"

#include <torch/torch.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/cuda/watchdog_fakes.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using Clock = NcclWatchdog::Clock;
using testing::call_of;
using testing::courier_to;
using testing::FakeProbe;
using testing::new_store;
using testing::StoreThatHasGone;

constexpr char kLimit[] = " within 10 s (the limit set by --timeout)";

// The tests have one lane for each kind of collective.
const void* lane_of(const CollectiveCall& call) {
  static const std::array<char, kCollectiveKinds> lanes{};
  return &lanes.at(static_cast<size_t>(call.kind));
}

// One rank with its clock, the collectives on its streams, and its watchdog.
struct Rank {
  explicit Rank(int rank, int world_size = 1, StorePointer store = nullptr)
      : wait_board(store ? std::make_shared<WaitBoard>(store, rank) : nullptr),
        courier(courier_to(wait_board, world_size)),
        messages(courier.get()),
        watchdog({.rank = rank, .world_size = world_size, .timeout = 10s, .now = [this] { return now; }},
                 probe, std::move(courier)) {}

  // Polls once and waits until the store has this rank's messages. The next look() reads the answers.
  void look() {
    watchdog.poll();
    if (messages) REQUIRE(messages->drain(60s));
  }
  size_t begin(const CollectiveCall& call) {
    const size_t slot = watchdog.take();
    watchdog.begin(slot, {&call, 1}, lane_of(call));
    return slot;
  }
  size_t enqueue(const CollectiveCall& call) {
    const size_t slot = begin(call);
    watchdog.enqueued(slot);
    return slot;
  }
  // Enqueues a collective that its stream reaches at once.
  size_t run(const CollectiveCall& call) {
    const size_t slot = enqueue(call);
    probe.has_started.insert(slot);
    look();
    return slot;
  }
  void pass(Clock::duration time) {
    now += time;
    look();
  }
  void run_to_its_end(const CollectiveCall& call) {
    probe.has_finished.insert(run(call));
    pass(100ms);
    probe.has_started.clear();
    probe.has_finished.clear();
  }
  std::string error() const {
    return testing::error_of<CommError>([&] { watchdog.check(); });
  }

  Clock::time_point now;
  FakeProbe probe;
  std::shared_ptr<WaitBoard> wait_board;
  std::unique_ptr<StoreCourier> courier;  // moved into the watchdog
  StoreCourier* messages;
  NcclWatchdog watchdog;
};

}  // namespace

TEST_CASE("watchdog: the timeout starts when the stream reaches the collective") {
  Rank rank(0);
  const size_t slot = rank.enqueue(call_of("bucket 3"));
  rank.pass(100s);
  CHECK(rank.error() == "no error");
  rank.probe.has_started.insert(slot);
  rank.pass(100s);  // the watchdog polls only at the end of this time, so the timeout starts there
  rank.pass(9999ms);
  CHECK(rank.error() == "no error");
  rank.pass(1ms);
  CHECK(rank.error() == std::string("all_gather of bucket 3 did not end") + kLimit);
}

TEST_CASE("watchdog: the slot of a finished collective is used again") {
  Rank rank(0);
  std::vector<size_t> slots;
  for (int i = 0; i < 1000; ++i) {
    slots.push_back(rank.run(call_of("bucket " + std::to_string(i))));
    if (slots.size() < 3) continue;
    rank.probe.has_finished.insert(slots.front());
    rank.pass(1s);
    rank.probe.has_started.erase(slots.front());
    rank.probe.has_finished.erase(slots.front());
    slots.erase(slots.begin());
  }
  CHECK(rank.error() == "no error");
  CHECK(rank.probe.prepared == 3);
}

TEST_CASE("watchdog: a collective that is not completely enqueued has a deadline too") {
  Rank rank(0);
  rank.probe.has_started.insert(rank.begin(call_of("bucket 3")));
  rank.probe.has_finished.insert(0);  // as if left over from an earlier use of slot 0
  rank.pass(0s);
  rank.pass(10s);
  CHECK_THAT(rank.error(), StartsWith("all_gather of bucket 3 did not end"));
}

TEST_CASE("watchdog: the timeout of an operation on the host starts when the operation begins") {
  Rank rank(0);
  const size_t first = rank.watchdog.begin_on_host("connecting over NCCL");
  rank.pass(9s);
  rank.watchdog.end(first);
  rank.watchdog.begin_on_host("allocation of 4096 bytes");
  rank.pass(9s);
  CHECK(rank.error() == "no error");
  rank.pass(1s);
  CHECK(rank.error() == std::string("allocation of 4096 bytes did not end") + kLimit);
}

TEST_CASE("watchdog: ranks that have published no collective are named as missing") {
  Rank rank(0, 3, new_store());
  rank.run(call_of("bucket 3", Collective::all_gather, "for aten::mm on h.0.weight"));
  rank.pass(10s);
  CHECK(rank.error() ==
        std::string("all_gather of bucket 3 for aten::mm on h.0.weight: ranks 1, 2 did not take part") +
            kLimit);
}

TEST_CASE("watchdog: ranks that wait for the same collective are not blamed, however late they are") {
  const StorePointer store = new_store();
  Rank first(0, 3, store);
  Rank second(1, 3, store);
  first.run(call_of("bucket 3", Collective::all_gather, "here"));
  first.pass(8s);
  second.run(call_of("bucket 3", Collective::all_gather, "there"));
  second.pass(1s);
  first.pass(2s);
  CHECK(first.error() == std::string("all_gather of bucket 3 here: rank 2 did not take part") + kLimit);
  second.pass(9s);
  CHECK(second.error() == std::string("all_gather of bucket 3 there: rank 2 did not take part") + kLimit);
}

TEST_CASE("watchdog: ranks that wait for different collectives both get an error that names them") {
  struct {
    CollectiveCall other;
    std::string words;
  } const cases[] = {{call_of("bucket 4"), "all_gather of bucket 4"},
                     {call_of("bucket 3", Collective::reduce_scatter), "reduce_scatter of bucket 3"}};
  for (const auto& [other, words] : cases) {
    const StorePointer store = new_store();
    Rank first(0, 2, store);
    Rank second(1, 2, store);
    first.run(call_of("bucket 3"));
    second.run(other);
    first.pass(5s);
    second.pass(5s);
    first.pass(5s);
    second.pass(5s);
    CHECK(first.error() ==
          "ranks disagree on the next collective: rank 0 is in all_gather of bucket 3, rank 1 in " + words);
    CHECK(second.error() == "ranks disagree on the next collective: rank 1 is in " + words +
                                ", rank 0 in all_gather of bucket 3");
  }
}

TEST_CASE("watchdog: a rank takes part if one of its running collectives is the missed one") {
  const StorePointer store = new_store();
  Rank first(0, 2, store);
  Rank second(1, 2, store);
  first.run(call_of("bucket 3"));
  second.run(call_of("bucket 7", Collective::reduce_scatter));
  second.run(call_of("bucket 3"));
  second.pass(5s);
  first.pass(5s);
  first.pass(5s);
  CHECK_THAT(first.error(), StartsWith("all_gather of bucket 3 did not end within 10 s") &&
                                Contains("though all ranks take part"));
}

TEST_CASE("watchdog: when a slow collective that was published has ended, it is removed from the store") {
  const StorePointer store = new_store();
  Rank first(0, 2, store);
  Rank second(1, 2, store);
  const size_t slot = second.run(call_of("bucket 4"));
  second.pass(5s);
  CHECK(first.wait_board->read_all(2)->at(1).at(0).words == "all_gather of bucket 4");
  second.probe.has_finished.insert(slot);
  second.pass(1s);
  CHECK(first.wait_board->read_all(2)->at(1).empty());
  first.run(call_of("bucket 5"));
  first.pass(10s);
  CHECK_THAT(first.error(), Contains("rank 1 did not take part"));
}

TEST_CASE("watchdog: a fast collective is not published in the store") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank rank(0, 2, testing::store_over(store));
  const size_t slot = rank.run(call_of("bucket 4"));
  rank.pass(900ms);
  rank.probe.has_finished.insert(slot);
  rank.pass(1ms);
  CHECK(store->getNumKeys() == 0);
}

TEST_CASE("watchdog: if the store is gone, the error names rank 0, which keeps it") {
  Rank rank(1, 2, testing::store_over(c10::make_intrusive<StoreThatHasGone>()));
  rank.run(call_of("bucket 3"));
  rank.pass(10s);
  CHECK(rank.error() == std::string("all_gather of bucket 3 did not end") + kLimit +
                            ", and rank 0, which keeps the store of all ranks, has probably ended");
}

TEST_CASE("watchdog: before rank 0 fails, it gives the waiting ranks time to read its store") {
  const StorePointer store = new_store();
  Rank first(0, 2, store);
  Rank second(1, 2, store);
  second.run(call_of("bucket 4"));
  second.pass(5s);
  first.run(call_of("bucket 3"));
  const auto start = Clock::now();
  first.pass(10s);
  CHECK(Clock::now() - start >= kTimeToRead);
  CHECK_THAT(first.error(), StartsWith("ranks disagree on the next collective"));
}

TEST_CASE("watchdog: an error from NCCL breaks the communicator at once and permanently, with one abort") {
  Rank rank(0);
  rank.enqueue(call_of("bucket 2", Collective::reduce_scatter));  // its stream has not reached it yet
  rank.run(call_of("bucket 3"));
  rank.probe.reported = "NCCL failed: remote process exited";
  rank.pass(1ms);
  CHECK(rank.error() == "all_gather of bucket 3: NCCL failed: remote process exited");
  CHECK(rank.watchdog.broken());
  rank.probe.reported = "something else";
  rank.run(call_of("bucket 4"));
  rank.pass(20s);
  rank.watchdog.fail(0, "too late");
  CHECK(rank.error() == "all_gather of bucket 3: NCCL failed: remote process exited");
  CHECK(rank.probe.aborts == 1);
}

TEST_CASE("watchdog: a failed start breaks the communicator") {
  Rank rank(0);
  const size_t slot = rank.begin(call_of("bucket 3"));
  rank.watchdog.fail(slot, "NCCL failed: unhandled cuda error");
  CHECK(rank.error() == "all_gather of bucket 3: NCCL failed: unhandled cuda error");
  CHECK(rank.probe.aborts == 1);
}

TEST_CASE("watchdog: an error names a group by its first call and the number of the others") {
  Rank rank(0);
  const size_t slot = rank.watchdog.take();
  rank.watchdog.begin(slot, std::vector{call_of("bucket 3"), call_of("bucket 4"), call_of("bucket 5")},
                      nullptr);
  rank.probe.has_started.insert(slot);
  rank.pass(0s);
  rank.pass(10s);
  CHECK(rank.error() == std::string("all_gather of bucket 3 and 2 more did not end") + kLimit);
}

TEST_CASE("watchdog: ranks that start collectives of equal size in another order get an error") {
  for (const bool differ : {false, true}) {
    const StorePointer store = new_store();
    Rank first(0, 2, store);
    Rank second(1, 2, store);
    for (int i = 0; i < 200; ++i) {
      const int other = differ && (i == 100 || i == 101) ? 201 - i : i;  // swaps calls 100 and 101
      first.run_to_its_end(call_of("bucket " + std::to_string(i)));
      second.run_to_its_end(call_of("bucket " + std::to_string(other)));
    }
    CHECK(first.error() == "no error");
    if (!differ) {
      CHECK(second.error() == "no error");
    } else {
      CHECK_THAT(second.error(),
                 StartsWith("ranks 0 and 1 have not made the same NCCL calls: among their calls 97 to 112 of "
                            "all_gather some differ (the last are all_gather of bucket 111 on rank 0, "
                            "all_gather of bucket 111 on rank 1)"));
    }
  }
}

TEST_CASE("watchdog: ranks may start collectives of different kinds in different orders") {
  const StorePointer store = new_store();
  Rank first(0, 2, store);
  Rank second(1, 2, store);
  for (int i = 0; i < 100; ++i) {
    const CollectiveCall gather = call_of("bucket " + std::to_string(i));
    const CollectiveCall sum = call_of("bucket " + std::to_string(i), Collective::reduce_scatter);
    for (const CollectiveCall& call : {gather, sum}) first.run_to_its_end(call);
    for (const CollectiveCall& call : {sum, gather}) second.run_to_its_end(call);
  }
  CHECK(first.error() == "no error");
  CHECK(second.error() == "no error");
}

TEST_CASE("watchdog: it asks only about the oldest collective of each lane") {
  Rank rank(0);
  std::vector<size_t> gathers;
  for (int i = 0; i < 300; ++i) gathers.push_back(rank.enqueue(call_of("bucket " + std::to_string(i))));
  rank.enqueue(call_of("bucket 0", Collective::reduce_scatter));
  rank.look();
  CHECK(rank.probe.asked == 5);  // started() and finished() for each lane, and failure()

  // The first 100 gathers have ended, and the next one has started.
  rank.probe.has_finished.insert(gathers.begin(), gathers.begin() + 100);
  rank.probe.has_started.insert(gathers[100]);
  rank.probe.asked = 0;
  rank.look();
  CHECK(rank.probe.asked == 100 + 5);
  rank.pass(10s);
  CHECK(rank.error() == std::string("all_gather of bucket 100 did not end") + kLimit);
}

}  // namespace zerorun
