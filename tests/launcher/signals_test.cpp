// Tests signals that are already ignored when the launcher starts: SIGHUP under nohup, SIGINT in the
// background of a shell script.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/launcher/launched.h"
#include "tests/launcher/leased_program.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::LeasedProgram;
using zerorun::testing::Result;

namespace {

const std::string kAwaitFile = "wait_for() { while [ ! -e $DIR/$1 ]; do sleep 0.05; done; }; ";

}  // namespace

TEST_CASE("a signal that was ignored when the launcher started does not end the job") {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    CAPTURE(signal);
    Launched job({.script = kAwaitFile + "echo up; wait_for go; echo done", .ignored_signals = {signal}});
    job.wait_for_output("up");
    job.signal(signal);
    job.create_file("go");
    Result result = job.finish();
    CHECK(result.exit_code == 0);
    CHECK(result.out == "up\ndone\n");
  }
}

TEST_CASE("ranks ignore the signals that the launcher ignores, except SIGTERM, which ends them") {
  const std::string script = "grep SigIgn /proc/self/status";
  CHECK_THAT(Launched({.script = script, .ignored_signals = {SIGHUP, SIGINT, SIGTERM}}).finish().out,
             Contains("SigIgn:\t0000000000000003\n"));
  CHECK_THAT(Launched({.script = script}).finish().out, Contains("SigIgn:\t0000000000000000\n"));
  // If rank 1 ignored SIGTERM, it would run until it is killed, five minutes later.
  Launched job({.options = {"--num_gpus", "2", "--grace", "300"},
                .script = kAwaitFile + "if [ $RANK = 0 ]; then wait_for up; exit 3; fi\n"
                                       ": >$DIR/up; while :; do sleep 0.05; done",
                .ignored_signals = {SIGTERM}});
  CHECK(job.finish().exit_code == 3);
}

TEST_CASE("a signal that was not ignored ends the job although another one was ignored") {
  Launched job({.script = "echo up; while :; do sleep 0.05; done", .ignored_signals = {SIGINT}});
  job.wait_for_output("up");
  job.signal(SIGINT);
  job.signal(SIGTERM);
  Result result = job.finish();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK_THAT(result.err, Contains("SIGTERM: ending the job") && !Contains("SIGINT"));
}

TEST_CASE("a job is interrupted while the system still loads its program") {
  const LeasedProgram program;
  if (!program.is_leased()) {
    WARN("no leases in this file system: skipped");
    return;
  }
  Launched job(std::vector<std::string>{"--num_gpus", "2", program.path()});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  job.signal(SIGINT);
  const Result result = job.finish(8);
  CHECK(result.exit_code == 128 + SIGINT);
  CHECK_THAT(result.err, Contains("SIGINT: ending the job"));
}
