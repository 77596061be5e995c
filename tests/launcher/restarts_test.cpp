// Tests --max_restarts: which failures start the ranks again, and that nothing of an earlier attempt is left.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/listening.h"
#include "base/memory_report.h"
#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::Result;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Rank 1 counts the attempts, one letter each.
const std::string kCount = "[ $RANK = 0 ] || printf x >>$DIR/attempts; ";

size_t attempts_of(const Launched& job) {
  return read_file(job.folder() + "/attempts").size();
}

// Rank 1 shows on the launcher's board that it has ended this many steps, as an engine does. `steps`: a
// digit.
std::string shows_steps(const std::string& steps) {
  const auto put = [](const std::string& digit, size_t member) {
    return "printf '\\'" + digit +
           " | dd of=$ZERORUN_MEMORY_BOARD bs=1 seek=" + std::to_string(sizeof(zerorun::MemoryNow) + member) +
           " conv=notrunc 2>/dev/null; ";
  };
  const std::string counted = std::to_string(static_cast<int>(zerorun::MemoryPhase::counted));
  return "[ $RANK = 0 ] || { " + put(counted, offsetof(zerorun::MemoryNow, phase)) +
         put(steps, offsetof(zerorun::MemoryNow, step)) + "}; ";
}

const std::string kWaits = "[ $RANK = 1 ] || exec sleep 300; ";

}  // namespace

TEST_CASE("ranks that fail are started again, with another secret and another port") {
  Launched job({.options = {"--num_gpus", "2", "--max_restarts", "2"},
                .script = "echo $ZERORUN_JOB $MASTER_PORT >$DIR/place$RANK.$ZERORUN_RESTARTS\n"
                          "[ -n \"$ZERORUN_RESTARTS\" ] && { echo attempt $ZERORUN_RESTARTS; exit 0; }\n" +
                          kWaits + "echo why >&2; exit 3",
                .environment = {{"ZERORUN_RESTARTS", "7"}}});
  const Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("attempt 1") && !Contains("attempt 7"));
  CHECK_THAT(result.err, Contains("zerorun: rank 1 exited with code 3; its last lines on stderr:") &&
                             Contains("zerorun: restart 1 of 2: rank 1 exited with code 3, found ") &&
                             !Contains("not started again") && !Contains("restart 2"));
  for (const char* rank : {"0", "1"}) {
    const std::string first = read_file(job.folder() + "/place" + rank + ".");
    const std::string second = read_file(job.folder() + "/place" + rank + ".1");
    CHECK(first.size() > 10);
    CHECK(first.substr(0, first.find(' ')) != second.substr(0, second.find(' ')));
  }
  CHECK(read_file(job.folder() + "/place0.1") == read_file(job.folder() + "/place1.1"));
  job.wait_until_nothing_is_left();
}

TEST_CASE("ranks that always fail are started --max_restarts times") {
  for (const std::string end : {"exit 7", "kill -9 $$", "kill -SEGV $$"}) {
    CAPTURE(end);
    Launched job({.options = {"--num_gpus", "2", "--max_restarts", "3"}, .script = kCount + kWaits + end});
    const Result result = job.finish();
    CHECK(result.exit_code == (end == "exit 7" ? 7 : end == "kill -9 $$" ? 128 + SIGKILL : 128 + SIGSEGV));
    CHECK(attempts_of(job) == 4);
    CHECK_THAT(result.err, Contains("restart 3 of 3: rank 1") &&
                               Contains("not started again: this was attempt 4 of 4 (--max_restarts 3)"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("without --max_restarts nothing is started again") {
  Launched job({.options = {"--num_gpus", "2"}, .script = kCount + kWaits + "exit 7"});
  const Result result = job.finish();
  CHECK(result.exit_code == 7);
  CHECK(attempts_of(job) == 1);
  CHECK_THAT(result.err, !Contains("start"));
}

TEST_CASE("a failure that repeats at the same step on the same rank ends the job with both reports") {
  for (const std::string steps : {"0", "7"}) {
    CAPTURE(steps);
    Launched job(
        {.options = {"--num_gpus", "2", "--max_restarts", "5"},
         .script = kCount + shows_steps(steps) + kWaits + "echo reason ${ZERORUN_RESTARTS:-0} >&2; exit 3"});
    const Result result = job.finish();
    CHECK(result.exit_code == 3);
    CHECK(attempts_of(job) == 2);
    const std::string place = steps == "0" ? "before the end of its first step" : "in step 8";
    CHECK_THAT(result.err,
               Contains("restart 1 of 5: rank 1 exited with code 3 " + place) &&
                   Contains("zerorun:   reason 1\nzerorun: not started again: rank 1 failed " + place +
                            " as before, when it was reported thus:\n"
                            "zerorun:   rank 1 exited with code 3; its last lines on "
                            "stderr:\nzerorun:     reason 0\n"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("failures at other steps, and ranks that somebody kills, are no repetition") {
  for (const bool kills : {false, true}) {
    CAPTURE(kills);
    Launched job({.options = {"--num_gpus", "2", "--max_restarts", "3"},
                  .script = kCount + shows_steps(kills ? "5" : "${ZERORUN_RESTARTS:-0}") + kWaits +
                            (kills ? "kill -9 $$" : "exit 3")});
    const Result result = job.finish();
    CHECK(result.exit_code == (kills ? 128 + SIGKILL : 3));
    CHECK(attempts_of(job) == 4);
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("a mistake of the user is not repeated, unless steps have been done") {
  Launched early({.options = {"--num_gpus", "2", "--max_restarts", "3"},
                  .script = kCount + kWaits + "echo error: no such file >&2; exit 2"});
  const Result refused = early.finish();
  CHECK(refused.exit_code == 2);
  CHECK(attempts_of(early) == 1);
  CHECK_THAT(refused.err, Contains("not started again: rank 1 reports a mistake of the user"));
  early.wait_until_nothing_is_left();

  Launched late(
      {.options = {"--num_gpus", "2", "--max_restarts", "3"},
       .script = kCount + shows_steps("3") + "[ -z \"$ZERORUN_RESTARTS\" ] || exit 0; " + kWaits + "exit 2"});
  CHECK(late.finish().exit_code == 0);
  CHECK(attempts_of(late) == 2);
}

TEST_CASE("SIGTERM to the launcher while the ranks of a failed attempt end: no other attempt") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    CAPTURE(signal);
    Launched job({.options = {"--num_gpus", "2", "--max_restarts", "5", "--grace", "60"},
                  .script = kCount +
                            "[ $RANK = 1 ] && { while [ ! -e $DIR/up ]; do sleep 0.02; done; exit 3; }\n"
                            "trap ': >$DIR/ending' TERM; : >$DIR/up\n"
                            "while [ ! -e $DIR/go ]; do sleep 0.02; done"});
    job.wait_for_file("ending");
    job.signal(signal);
    job.create_file("go");
    const Result result = job.finish();
    CHECK(result.exit_code == 3);
    CHECK(attempts_of(job) == 1);
    CHECK_THAT(result.err, Contains("rank 1 exited with code 3") && !Contains("restart 1"));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("SIGTERM to the launcher at any moment of its restarts ends the job") {
  for (int delay = 0; delay < 8; ++delay) {
    CAPTURE(delay);
    Launched job({.options = {"--num_gpus", "3", "--max_restarts", "4000"},
                  .script = "echo began; [ $RANK = 1 ] && exit 3; exec sleep 300"});
    job.wait_for_error("restart " + std::to_string(2 + delay));
    job.signal(SIGTERM);
    const Result result = job.finish(5);
    CHECK((result.exit_code == 3 || result.exit_code == 128 + SIGTERM));
    job.wait_until_nothing_is_left();
  }
}

TEST_CASE("a port that the user has chosen stays, and is kept from other jobs, after a restart too") {
  const std::string port = std::to_string(zerorun::listen_on("127.0.0.1", 0).port);
  Launched job({.options = {"--num_gpus", "2", "--master_port", port, "--max_restarts", "1"},
                .script = "[ -n \"$ZERORUN_RESTARTS\" ] || { " + kWaits +
                          "exit 3; }\necho port $MASTER_PORT; : >$DIR/up$RANK\n"
                          "while [ ! -e $DIR/go ]; do sleep 0.02; done"});
  job.wait_for_file("up0");
  const Result other = Launched({.options = {"--master_port", port}, .script = "echo ran"}).finish();
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, Contains(port) && Contains("the port is in use"));
  job.create_file("go");
  const Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("port " + port));
  job.wait_until_nothing_is_left();
}

TEST_CASE("ranks that have been started again end with a killed launcher") {
  Launched job({.options = {"--num_gpus", "2", "--max_restarts", "1"},
                .script = "[ -z \"$ZERORUN_RESTARTS\" ] && { " + kWaits +
                          "exit 3; }\n"
                          ": >$DIR/up$RANK; exec sleep 300"});
  job.wait_for_file("up0");
  job.wait_for_file("up1");
  job.signal(SIGKILL);
  CHECK(job.finish().exit_code == -1);
  job.wait_until_nothing_is_left();
}

TEST_CASE("each attempt has log files of its own") {
  const std::string base =
      std::filesystem::temp_directory_path() / ("zerorun_logs_" + std::to_string(::getpid()));
  Launched logged(
      {.options = {"--num_gpus", "2", "--max_restarts", "1", "--log_dir", base, "--redirects", "1"},
       .script = "echo attempt ${ZERORUN_RESTARTS:-0}; [ -n \"$ZERORUN_RESTARTS\" ] && exit 0; " + kWaits +
                 "exit 3"});
  CHECK(logged.finish().exit_code == 0);
  const auto runs = std::filesystem::directory_iterator(base);
  CHECK(std::distance(begin(runs), end(runs)) == 1);
  for (const auto& run : std::filesystem::directory_iterator(base)) {
    for (const std::string attempt : {"0", "1"})
      CHECK(read_file(run.path() / ("attempt_" + attempt) / "1/stdout.log") == "attempt " + attempt + "\n");
  }
  std::filesystem::remove_all(base);

  Launched single({.options = {"--num_gpus", "1", "--max_restarts", "1", "--enable_each_rank_log", base},
                   .script = "[ -n \"$ZERORUN_RESTARTS\" ] && exit 0; exit 3"});
  CHECK(single.finish().exit_code == 0);
  const auto files = std::filesystem::directory_iterator(base);
  CHECK(std::distance(begin(files), end(files)) == 2);
  std::filesystem::remove_all(base);
}

TEST_CASE("ranks find the memory of --hold_every again, which only they and the launcher have open") {
  Launched job(
      {.options = {"--num_gpus", "2", "--max_restarts", "1", "--hold_every", "4"},
       .script =
           "set -- $ZERORUN_HELD_MEMORY; every=$1; shift 3; [ $RANK = 0 ] || shift 2\n"
           "[ -n \"$ZERORUN_RESTARTS\" ] && {\n"
           "  echo every $every: $(cat $2) of $#, open: $(ls -l /proc/self/fd | grep -c memfd:zerorun)\n"
           "  exit 0\n"
           "}\n"
           "printf \"rank $RANK\" >$2; : >$DIR/wrote$RANK; " +
           kWaits + "while [ ! -e $DIR/wrote0 ]; do sleep 0.02; done; exit 3"});
  const Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out,
             Contains("every 4: rank 0 of 5, open: 0") && Contains("every 4: rank 1 of 3, open: 0"));

  for (const char* restarts : {"0", "1"}) {
    CAPTURE(restarts);
    Launched none({.options = {"--num_gpus", "1", "--max_restarts", restarts},
                   .script = "echo held: $ZERORUN_HELD_MEMORY.",
                   .environment = {{"ZERORUN_HELD_MEMORY", "1 /dev/null /dev/null"}}});
    CHECK_THAT(none.finish().out, Contains("held: ."));
  }
}
