// Tests how jobs end: failures, the grace period, interruptions.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::Result;
using zerorun::testing::Setup;

namespace {

// Seconds in which a job must end with the default grace period.
constexpr double kEndDeadline = 5;

const std::string kWaitFor = "wait_for() { while [ ! -e $DIR/$1 ]; do sleep 0.02; done; }\n";

}  // namespace

TEST_CASE("the launcher's exit code is that of the first rank to fail") {
  for (int code : {1, 3, 77, 255}) {
    Launched job({.options = {"--num_gpus", "2"},
                  .script = "if [ $RANK = 1 ]; then exit " + std::to_string(code) + "; fi; sleep 300"});
    Result result = job.finish(kEndDeadline);
    CHECK(result.exit_code == code);
    CHECK_THAT(result.err, Contains("zerorun: rank 1 exited with code " + std::to_string(code)));
    CHECK_THAT(result.err, !Contains("rank 0"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("the failure of a rank is seen although it comes while other ranks are still started") {
  Launched job(
      {.options = {"--num_gpus", "12"}, .script = "[ $RANK = 0 ] && { sleep 20 & exit 3; }; exec sleep 15"});
  CHECK(job.finish(10).exit_code == 3);
  job.wait_until_nothing_is_left();
}

TEST_CASE("a rank that ends with success before it joins is named at once, if another one waits for it") {
  // Rank 0 shows on the launcher's board that it joins, as zerorun::connect() does.
  const auto shows = [](const std::string& joins, const std::string& world_size) {
    return "printf '\\" + joins + "\\0\\0\\0\\" + world_size +
           "\\0\\0\\0' | dd of=$ZERORUN_BOARD bs=8 count=1 conv=notrunc 2>/dev/null; ";
  };
  Launched job({.options = {"--num_gpus", "2"},
                .script = "if [ $RANK = 1 ]; then exit 0; fi; " + shows("1", "2") + "sleep 300"});
  const Result result = job.finish(kEndDeadline);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             Contains("zerorun: rank 1 exited with code 0: it did not join the job, and rank 0 waits"));
  job.wait_until_nothing_is_left();

  // It has not begun to join, has joined, or waits for fewer ranks than the job has.
  std::vector<std::unique_ptr<Launched>> fine;
  for (const std::string& state : {std::string(), shows("2", "2"), shows("1", "1")}) {
    fine.push_back(std::make_unique<Launched>(
        Setup{.options = {"--num_gpus", "2"}, .script = "[ $RANK = 1 ] && exit 0; " + state + "sleep 2"}));
  }
  for (const auto& one : fine) CHECK(one->finish(kEndDeadline + 2).exit_code == 0);
}

TEST_CASE("a rank killed by a signal is reported in words") {
  Launched job(
      {.options = {"--num_gpus", "3"}, .script = "if [ $RANK = 2 ]; then kill -9 $$; fi; sleep 300"});
  Result result = job.finish(kEndDeadline);
  CHECK(result.exit_code == 128 + SIGKILL);
  CHECK_THAT(result.err, Contains("zerorun: rank 2 killed by signal 9 (SIGKILL): killed from outside: "));
  job.wait_until_nothing_is_left();
}

TEST_CASE("the report ends with the rank's last lines on stderr") {
  Launched job(
      {.options = {"--num_gpus", "2"},
       .script =
           "[ $RANK = 1 ] || sleep 300\n"
           "for i in $(seq 21); do echo line $i >&2; done; echo not this; printf 'partial' >&2; exit 4"});
  Result result = job.finish(kEndDeadline);
  CHECK(result.exit_code == 4);
  std::string expected;  // the last 20 lines
  for (int line = 3; line <= 21; ++line) expected += "zerorun:   line " + std::to_string(line) + "\n";
  expected += "zerorun:   partial\n";
  CHECK_THAT(result.err, Catch::Matchers::EndsWith(
                             "zerorun: rank 1 exited with code 4; its last lines on stderr:\n" + expected));
}

TEST_CASE("how a rank failed is noted in the run log, if there is one") {
  // Rank 0 shows the log's folder as the engine does (base/run_log_board.h).
  const std::string shows = "printf %s $DIR | dd of=$ZERORUN_RUN_LOG_BOARD conv=notrunc 2>/dev/null; ";
  const auto log_after = [&](const std::string& script) {
    Launched job({.options = {"--num_gpus", "2"}, .script = kWaitFor + script});
    job.finish(kEndDeadline);
    std::ifstream file(job.folder() + "/steps.jsonl");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string begins = "if [ $RANK = 0 ]; then printf '{\"step\":1}\\n{\"st' >$DIR/steps.jsonl; " +
                             shows + ": >$DIR/shown; sleep 300; fi; wait_for shown; ";
  const std::string log = log_after(begins + "kill -9 $$");
  CHECK_THAT(log, Catch::Matchers::StartsWith("{\"step\":1}\n{\"step\":0,\"event\":\"failed\",\"time\":\"2"));
  CHECK_THAT(log, Contains("\"text\":\"rank 1 killed by signal 9 (SIGKILL): killed from outside"));
  CHECK_THAT(log_after(begins + "exit 3"), Contains("rank 1 exited with code 3"));
  CHECK(log_after("[ $RANK = 0 ] && { " + shows + ": >$DIR/shown; }; wait_for shown; exit 3").empty());
}

TEST_CASE("exit code 2: the rank has reported the mistake itself, and the other ranks get no grace") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "300"},
                .script = kWaitFor + "if [ $RANK = 1 ]; then trap '' TERM; : >$DIR/up; sleep 300; fi\n"
                                     "wait_for up; echo error: no such file >&2; exit 2"});
  Result result = job.finish(kEndDeadline);
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("\nerror: no such file\n") && !Contains("last lines"));
  job.wait_until_nothing_is_left();
}

TEST_CASE("a rank may end early with success, and leaves no zombie") {
  Launched job(
      {.options = {"--num_gpus", "2"},
       .script = kWaitFor + "if [ $RANK = 0 ]; then : >$DIR/ended; exit 0; fi; wait_for go; echo done"});
  job.wait_for_file("ended");
  bool collected = false;
  for (int i = 0; i < 500 && !collected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    // At most three processes are left: the guardian, rank 1 and its `sleep`.
    collected = zerorun::testing::count_zombies(job.pid()) == 0 && job.processes().size() <= 3;
  }
  CHECK(collected);
  job.create_file("go");
  Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK(result.out == "done\n");
  job.wait_until_nothing_is_left();
}

TEST_CASE("ranks have time to end by themselves") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "60"},
                .script = kWaitFor + "if [ $RANK = 1 ]; then wait_for up; exit 3; fi\n"
                                     "trap 'sleep 0.5; echo saved; exit 0' TERM; : >$DIR/up\n"
                                     "while :; do sleep 0.05; done"});
  Result result = job.finish();
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.out, Contains("saved"));
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace period, within 5 s by default") {
  Launched job({.options = {"--num_gpus", "2"},
                .script = kWaitFor + "if [ $RANK = 1 ]; then wait_for up; exit 3; fi\n"
                                     "trap '' TERM; : >$DIR/up; while :; do sleep 0.1; done"});
  job.wait_for_file("up");
  Result result = job.finish(kEndDeadline);
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.err, !Contains("do not end"));  // SIGKILL has ended the rank
  job.wait_until_nothing_is_left();
}

TEST_CASE("a stopped rank is continued when the job ends, so that it can handle SIGTERM") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "4"},
                .script = kWaitFor +
                          "if [ $RANK = 1 ]; then trap 'echo took SIGTERM; exit 0' TERM; : >$DIR/up\n"
                          "kill -STOP $$; while :; do sleep 0.05; done; fi\n"
                          "wait_for up; sleep 0.3; exit 3"});
  Result result = job.finish();
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.out, Contains("took SIGTERM"));
  job.wait_until_nothing_is_left();
}

TEST_CASE("a signal to the launcher ends the job") {
  struct {
    int signal;
    std::string name;
  } const cases[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}};
  for (const auto& [signal, name] : cases) {
    Launched job(
        {.options = {"--num_gpus", "2"},
         .script = "trap 'echo bye $RANK; exit 5' TERM; : >$DIR/up$RANK; while :; do sleep 0.05; done"});
    job.wait_for_file("up0");
    job.wait_for_file("up1");
    job.signal(signal);
    Result result = job.finish(kEndDeadline);
    CHECK(result.exit_code == 128 + signal);
    CHECK_THAT(result.out, Contains("bye 0") && Contains("bye 1"));
    CHECK_THAT(result.err,
               Contains("zerorun: " + name + ": ending the job") && !Contains("exited with code"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("Ctrl-C on the terminal ends the job, ranks that ignore SIGTERM included") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "0.5"},
                .script = "trap '' TERM INT; echo up $RANK; while :; do sleep 0.05; done",
                .on_terminal = true});
  job.wait_for_output("up 0");
  job.wait_for_output("up 1");
  job.type("\x03");
  CHECK(job.finish(kEndDeadline).exit_code == 128 + SIGINT);
  job.wait_until_nothing_is_left();
}

TEST_CASE("a second Ctrl-C kills at once, unless it comes within milliseconds of the first") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "300"},
                .script = "trap 'echo got it' TERM; : >$DIR/up$RANK; while :; do sleep 0.05; done"});
  job.wait_for_file("up0");
  job.wait_for_file("up1");
  job.signal(SIGINT);
  job.signal(SIGINT);
  job.wait_for_output("got it");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(zerorun::testing::is_alive(job.pid()));
  job.signal(SIGINT);
  CHECK(job.finish(kEndDeadline).exit_code == 128 + SIGINT);
  job.wait_until_nothing_is_left();
}

TEST_CASE("exit codes are seen even if the launcher is started with SIGCHLD ignored") {
  Launched job({.script = "exit 3", .ignored_signals = {SIGCHLD, SIGPIPE}});
  CHECK(job.finish().exit_code == 3);
}
