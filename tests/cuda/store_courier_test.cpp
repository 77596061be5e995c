// Tests the courier, which makes the watchdog's calls to the store. If the store's server hangs, no other
// thread may wait for these calls.
#include "cuda/store_courier.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/cuda/watchdog_fakes.h"

namespace zerorun {
namespace {

using namespace std::chrono_literals;
using Clock = NcclWatchdog::Clock;
using testing::call_of;
using testing::courier_to;
using testing::FakeProbe;
using testing::new_store;
using testing::store_over;
using testing::StoreThatStandsStill;

}  // namespace

TEST_CASE("watchdog: a store that hangs delays neither the error at the deadline nor stop()") {
  const auto store = c10::make_intrusive<StoreThatStandsStill>();
  for (const int rank : {0, 1}) {
    FakeProbe probe;
    NcclWatchdog watchdog({.rank = rank, .world_size = 2, .timeout = 200ms, .period = 1ms}, probe,
                          courier_to(std::make_shared<WaitBoard>(store_over(store), rank), 2));
    watchdog.start();
    const size_t slot = watchdog.take();
    probe.has_started.insert(slot);
    const auto start = Clock::now();
    watchdog.begin(slot, std::vector{call_of("bucket 3")}, nullptr);
    watchdog.enqueued(slot);
    while (!watchdog.broken() && Clock::now() - start < 60s) std::this_thread::sleep_for(1ms);
    CHECK(Clock::now() - start >= 200ms);
    CHECK(Clock::now() - start < 10s);
    CHECK_THROWS_WITH(
        watchdog.check(),
        "all_gather of bucket 3 did not end within 0.2 s (the limit set by --timeout), and rank 0, which "
        "keeps the store of all ranks, does not answer: it is stopped or cannot be reached");
    watchdog.stop();
    CHECK(Clock::now() - start < 20s);
    CHECK(probe.aborts == 1);
  }
  CHECK(store->calls() == 2);    // one call of each rank, which has not returned
  CHECK(store.use_count() > 1);  // the calls keep the store alive
  store->go_on();
  const auto patience = Clock::now() + 60s;
  while (store.use_count() > 1 && Clock::now() < patience) std::this_thread::sleep_for(1ms);
  CHECK(store.use_count() == 1);
}

TEST_CASE("watchdog: while the store hangs, an error from NCCL is still found") {
  const auto store = c10::make_intrusive<StoreThatStandsStill>();
  FakeProbe probe;
  NcclWatchdog watchdog({.rank = 1, .world_size = 2, .timeout = 60s}, probe,
                        courier_to(std::make_shared<WaitBoard>(store_over(store), 1), 2));
  watchdog.begin(watchdog.take(), std::vector{call_of("bucket 3")}, nullptr);
  const auto patience = Clock::now() + 60s;
  while (store->calls() == 0 && Clock::now() < patience) watchdog.poll();
  CHECK(store->calls() == 1);
  probe.reported = "NCCL failed: remote process exited";
  watchdog.poll();
  CHECK_THROWS_WITH(watchdog.check(), "all_gather of bucket 3: NCCL failed: remote process exited");
  store->go_on();
}

TEST_CASE("courier: of several messages of one kind while the store is slow, only the last one is sent") {
  const auto store = c10::make_intrusive<StoreThatStandsStill>();
  StoreCourier courier(std::make_shared<WaitBoard>(store_over(store), 1), 2);
  courier.publish({{"first", "first"}});
  const auto patience = Clock::now() + 60s;
  while (store->calls() == 0 && Clock::now() < patience) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 10; ++i) courier.publish({{"again", "again " + std::to_string(i)}});
  courier.ask_posted();
  CHECK_FALSE(courier.drain(10ms));
  CHECK_FALSE(courier.take_posted());
  CHECK_FALSE(courier.read_all(10ms));
  store->go_on();
  CHECK(courier.drain(60s));
  CHECK(store->calls() == 4);  // two publish() calls, one of read_all() for rank 0, one of posted_for_all()
  CHECK(courier.take_posted() == std::string());
  CHECK_FALSE(courier.take_posted());
}

TEST_CASE("courier: messages that are still pending are sent before it stops") {
  const StorePointer store = new_store();
  const auto wait_board = std::make_shared<WaitBoard>(store, 1);
  {
    StoreCourier courier(wait_board, 2);
    courier.publish({{"bucket 3", "all_gather of bucket 3"}});
    courier.post_for_all("news");
  }
  CHECK(wait_board.use_count() == 1);
  CHECK(wait_board->posted_for_all() == "news");
  CHECK(WaitBoard(store, 0).read_all(2)->at(1).at(0).words == "all_gather of bucket 3");
}

}  // namespace zerorun
