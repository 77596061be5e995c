// Tests the thread of the watchdog of collectives, whose clock is the real one.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <thread>

#include "cuda/nccl_watchdog.h"
#include "tests/cuda/watchdog_fakes.h"
#include "tests/support/stderr_capture.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using Clock = NcclWatchdog::Clock;
using testing::call_of;
using testing::FakeProbe;

}  // namespace

TEST_CASE("watchdog: while a question to the GPU hangs, collectives start, and the timeout still ends them") {
  testing::StderrCapture capture;  // the program's threads may all hang, so the reason is logged too
  testing::HangingProbe probe;
  NcclWatchdog watchdog({.timeout = 2s, .period = 1ms}, probe, nullptr);
  watchdog.start();
  const auto start = Clock::now();
  for (int i = 0; i < 10; ++i) {
    const size_t slot = watchdog.take();
    watchdog.begin(slot, std::vector{call_of("bucket " + std::to_string(i))}, nullptr);
    watchdog.enqueued(slot);
    probe.await_question();
  }
  CHECK(probe.aborts == 0);
  while (!watchdog.broken() && Clock::now() - start < 60s) std::this_thread::sleep_for(1ms);
  CHECK(Clock::now() - start >= 2s);
  CHECK_THROWS_WITH(watchdog.check(),
                    "all_gather of bucket 0: a question of the watchdog to the GPU did not end within 2 s "
                    "(the limit set by --timeout): another call to CUDA hangs in this process");
  watchdog.stop();  // returns, because the abort has ended the question
  CHECK(probe.aborts == 1);
  CHECK_THAT(capture.text(),
             Contains("rank 0: all_gather of bucket 0: a question of the watchdog to the GPU"));
}

TEST_CASE("watchdog: an error of its thread, or of the abort, breaks the communicator and not the process") {
  testing::StderrCapture capture;
  testing::ThrowingProbe probe;
  NcclWatchdog watchdog({.timeout = 60s, .period = 1ms}, probe, nullptr);
  watchdog.start();
  const size_t slot = watchdog.take();
  watchdog.begin(slot, std::vector{call_of("bucket 3")}, nullptr);
  const auto start = Clock::now();
  while (!watchdog.broken() && Clock::now() - start < 60s) std::this_thread::sleep_for(1ms);
  CHECK_THROWS_WITH(watchdog.check(), "the watchdog of collectives failed: no memory");
  watchdog.stop();
  CHECK(probe.aborts == 1);
  CHECK_THAT(capture.text(), Contains("rank 0 cannot abort its collectives: no threads"));
}

TEST_CASE(
    "watchdog: its thread finds a missed deadline by itself, and does not poll while no collective runs") {
  FakeProbe probe;
  NcclWatchdog watchdog({.timeout = 100ms, .period = 1ms}, probe, nullptr);
  CHECK(probe.entered == 0);
  watchdog.start();
  std::this_thread::sleep_for(30ms);
  CHECK(probe.asked == 0);

  size_t slot = watchdog.take();
  probe.has_started.insert(slot);
  probe.has_finished.insert(slot);
  watchdog.begin(slot, std::vector{call_of("bucket 3")}, nullptr);
  watchdog.enqueued(slot);
  const auto patience = Clock::now() + 10s;
  while (probe.asked < 2 && Clock::now() < patience) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(10ms);  // by now the poll that saw the end of the collective has ended
  const int asked = probe.asked;
  CHECK(asked >= 2);
  std::this_thread::sleep_for(50ms);
  CHECK(probe.asked == asked);

  slot = watchdog.take();
  probe.has_finished.clear();
  const auto start = Clock::now();
  watchdog.begin(slot, std::vector{call_of("bucket 4")}, nullptr);
  watchdog.enqueued(slot);
  while (!watchdog.broken() && Clock::now() < patience) std::this_thread::sleep_for(1ms);
  CHECK(Clock::now() - start >= 100ms);
  CHECK_THROWS_WITH(watchdog.check(), StartsWith("all_gather of bucket 4 did not end within 0.1 s"));
  watchdog.stop();
  CHECK(probe.aborts == 1);
  CHECK(probe.entered == 1);
}

}  // namespace zerorun
