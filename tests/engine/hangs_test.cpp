// Trainings under `zerorun` in which a rank stops making progress: it is stopped, or hangs in the program. It
// is found, named with its place, and replaced; and a job that is stopped as a whole goes on.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/restarts_support.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr double kHungAfter = 1.2;

Way hung_way() {
  return {.save_every = 1000, .holds = true, .steps = 80, .options = {"--hung_after", "1.2"}};
}

}  // namespace

TEST_CASE(
    "Ranks that hang or are stopped are found, named and replaced, with the bits of an undisturbed run") {
  const Way way = hung_way();
  const Calm calm = run_calmly(way);
  Launched job = start(way, 2);
  job.create_file("hang.0.4.loader");
  job.wait_for_error("zerorun: restart 1 of 2");
  await_steps(job);
  const std::vector<pid_t> ranks = ranks_of(job);
  REQUIRE(ranks.size() == kRestartedRanks);
  const double stopped_at = seconds_now();
  ::kill(ranks.back(), SIGSTOP);
  job.wait_for_error("is stopped by a signal");
  const double found_after = seconds_now() - stopped_at;
  // Within --hung_after and 2 s; 4 s more for a machine that other tests keep busy.
  CHECK(found_after < kHungAfter + 2 + 4);
  CHECK(found_after > kHungAfter / 2);
  job.create_file("go");
  const Result result = job.finish(60);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  job.wait_until_nothing_is_left();
  check_repeats(check_same(job, way, calm), way.save_every);
  CHECK_THAT(
      result.err,
      Contains("zerorun: rank 0 hangs: no progress for 1.") &&
          Contains("in its own code between calls of the engine, in 'the data loader', in step 5, while "
                   "rank 1 waits in ") &&
          Contains("its stack, the innermost call first:") && Contains("nanosleep"));
  CHECK_THAT(result.err, Contains("zerorun: restart 1 of 2: rank 0 hung in step 5, found ") &&
                             Contains("zerorun: restart 2 of 2: rank ") &&
                             Contains("load_newest(): step 4 from memory") &&
                             Contains("its stack is not to be had"));
}

TEST_CASE("A rank that hangs in forward ends a job without restarts, and is reported first") {
  Way way = hung_way();
  way.holds = false;
  Launched job = start(way, 0);
  job.create_file("hang.1.3.forward");
  const Result result = job.finish(60);
  INFO(result.err);
  CHECK(result.exit_code == 1);
  job.wait_until_nothing_is_left();
  CHECK_THAT(result.err, Contains("zerorun: rank 1 hangs: no progress for 1.") &&
                             Contains("in its own code after the first use of parameters, in forward or "
                                      "behind it, in step 4, while rank 0") &&
                             Contains("zerorun: rank 1 hung: no progress"));
  CHECK(result.err.find("rank 1 hangs") < result.err.find("error: "));
}

TEST_CASE("A job that is stopped as a whole goes on, however long its ranks would wait") {
  Way way = hung_way();
  way.holds = false;
  way.options = {"--hung_after", "1.2", "--timeout", "4"};
  Launched job = start(way, 0);
  await_steps(job);
  const std::vector<pid_t> ranks = ranks_of(job);
  REQUIRE(ranks.size() == kRestartedRanks);
  // Rank 0 surely waits for rank 1 when it is stopped, and again when it goes on.
  const auto pause = [](int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  ::kill(ranks[1], SIGSTOP);
  pause(300);
  job.signal(SIGSTOP);
  ::kill(ranks[0], SIGSTOP);
  pause(4500);
  ::kill(ranks[0], SIGCONT);
  pause(100);
  ::kill(ranks[1], SIGCONT);
  job.signal(SIGCONT);
  job.create_file("go");
  const Result result = job.finish(60);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, !Contains("hang") && !Contains("error"));
  job.wait_until_nothing_is_left();
}

}  // namespace zerorun::testing
