// Tests what the launcher does about a rank that makes no progress while others wait for it. The ranks are
// shell scripts that write on its boards what ranks with an engine do.
#include <catch2/catch.hpp>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

#include "base/activity_board.h"
#include "base/memory_report.h"
#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using zerorun::Activity;
using zerorun::ActivityNow;
using zerorun::MemoryNow;
using zerorun::testing::Launched;
using zerorun::testing::Result;

namespace {

// The shell's command that writes a byte, or a digit's worth of bytes, into a board.
std::string writes(const std::string& board, size_t place, int byte) {
  return "printf '\\" + std::to_string(byte) + "' | dd of=$" + board + " bs=1 seek=" + std::to_string(place) +
         " conv=notrunc 2>/dev/null; ";
}

std::string shows(int rank, size_t member, int byte) {
  return writes("ZERORUN_ACTIVITY_BOARD", rank * sizeof(ActivityNow) + member, byte);
}

// Both ranks have engines, rank 1 has ended 5 steps, and rank 0 waits.
const std::string kWaitsInStep6 =
    "[ $RANK = 0 ] || { " + shows(1, offsetof(ActivityNow, activity), static_cast<int>(Activity::program)) +
    writes("ZERORUN_MEMORY_BOARD", sizeof(MemoryNow) + offsetof(MemoryNow, phase), 2) +
    writes("ZERORUN_MEMORY_BOARD", sizeof(MemoryNow) + offsetof(MemoryNow, step), 5) +
    ": >$DIR/shown; }\n"
    "[ $RANK = 1 ] || { while [ ! -e $DIR/shown ]; do sleep 0.02; done; " +
    shows(0, offsetof(ActivityNow, waiters), 1) + "}\n";

const std::string kCountsAttempts = "[ $RANK = 0 ] || printf x >>$DIR/attempts\n";

size_t attempts_in(const Launched& job) {
  std::ifstream file(job.folder() + "/attempts");
  return std::string(std::istreambuf_iterator<char>(file), {}).size();
}

}  // namespace

TEST_CASE("a rank that makes no progress while another one waits is named, and the job ended") {
  Launched job(
      {.options = {"--num_gpus", "2", "--hung_after", "0.5"}, .script = kWaitsInStep6 + "exec sleep 300"});
  const Result result = job.finish();
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.err,
      Contains("zerorun: rank 1 hangs: no progress for 0.") &&
          Contains("s, in its own code between calls of the engine, in step 6, while rank 0 waits in ") &&
          Contains(" sleeps") && Contains("its stack is not to be had") &&
          Contains("\nzerorun: rank 1 hung: no progress") && !Contains("rank 0 exited"));
  job.wait_until_nothing_is_left();
}

TEST_CASE("without a rank that waits, or before its time, nothing hangs") {
  for (const bool waits : {false, true}) {
    Launched job({.options = {"--num_gpus", "2", "--hung_after", waits ? "60" : "0.5"},
                  .script = (waits ? kWaitsInStep6 : std::string()) + "sleep 0.9"});
    const Result result = job.finish();
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.err, !Contains("hang"));
  }
}

TEST_CASE("a rank that hangs at the same step again ends the job, unless somebody stops it") {
  for (const bool stops : {false, true}) {
    CAPTURE(stops);
    Launched job({.options = {"--num_gpus", "2", "--hung_after", "0.5", "--max_restarts", stops ? "1" : "5"},
                  .script = kCountsAttempts + kWaitsInStep6 +
                            (stops ? "[ $RANK = 0 ] || kill -STOP $$; exec sleep 300" : "exec sleep 300")});
    const Result result = job.finish();
    CHECK(result.exit_code == 1);
    CHECK(attempts_in(job) == 2);
    CHECK_THAT(result.err, Contains("restart 1 of ") && Contains(": rank 1 hung in step 6, found "));
    if (stops) {
      CHECK_THAT(result.err, Contains(" is stopped by a signal") && Contains("this was attempt 2 of 2"));
    } else {
      CHECK_THAT(result.err, Contains("not started again: rank 1 failed in step 6 as before, when it was "
                                      "reported thus:\nzerorun:   rank 1 hung: no progress"));
    }
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("of a rank whose wait was too long and the one for which it waited, the latter is reported") {
  Launched job({.options = {"--num_gpus", "2", "--timeout", "1", "--hung_after", "60"},
                .script = kWaitsInStep6 + "[ $RANK = 0 ] && { sleep 1.2; exit 1; }; exec sleep 300"});
  const Result result = job.finish();
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("zerorun: rank 1 hung: no progress for ") && !Contains("rank 0 exited"));
  job.wait_until_nothing_is_left();
}
