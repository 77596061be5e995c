// Tests how the launcher prints the output of its ranks.
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::Result;

TEST_CASE("one rank prints without a prefix, byte for byte") {
  Launched job(
      {.options = {"--num_gpus", "2"},
       .script =
           "if [ $RANK = 0 ]; then while [ ! -e $DIR/bytes ]; do sleep 0.02; done; cat $DIR/bytes; fi"});
  std::mt19937 random(3);
  std::string bytes;
  for (int i = 0; i < 3000000; ++i) bytes += static_cast<char>(random() | 1);  // odd, so never '\n' (10)
  bytes += "\nlast line without an end";
  std::ofstream(job.folder() + "/part", std::ios::binary) << bytes;
  std::rename((job.folder() + "/part").c_str(), (job.folder() + "/bytes").c_str());
  Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK((result.out == bytes));
}

TEST_CASE("many lines of several ranks stay whole and in order") {
  const std::string script =
      "i=0; pad=$(printf '%0300d' 7); while [ $i -lt 2000 ]; do printf \"$RANK:$i:\"; echo \"$pad:end\"; "
      "i=$((i+1)); done";
  Launched job({.options = {"--num_gpus", "3"}, .script = script});
  Result result = job.finish(60);
  CHECK(result.exit_code == 0);
  std::istringstream lines(result.out);
  std::map<char, int> next;
  bool all_whole = true;
  for (std::string line; std::getline(lines, line);) {
    const bool prefixed = line.starts_with("[rank ");
    const char rank = line[prefixed ? 6 : 0];
    const std::string prefix = prefixed ? std::string("[rank ") + rank + "] " : "";
    if (line != prefix + rank + ":" + std::to_string(next[rank]++) + ":" + std::string(299, '0') + "7:end") {
      all_whole = false;
      UNSCOPED_INFO("odd line: " << line);
    }
  }
  CHECK(all_whole);
  CHECK(next == std::map<char, int>{{'0', 2000}, {'1', 2000}, {'2', 2000}});
}

TEST_CASE("the prefix begins when a second rank has printed") {
  Launched job(
      {.options = {"--num_gpus", "2"},
       .script = "wait_for() { while [ ! -e $DIR/$1 ]; do sleep 0.02; done; }\n"
                 "if [ $RANK = 0 ]; then echo alone; wait_for two; echo together; echo err >&2; : >$DIR/end\n"
                 "else wait_for one; echo hello; wait_for end; fi"});
  job.wait_for_output("alone\n");
  job.create_file("one");
  job.wait_for_output("hello\n");  // the launcher may read the pipes of two ranks in any order
  job.create_file("two");
  Result result = job.finish();
  CHECK(result.out == "alone\n[rank 1] hello\n[rank 0] together\n");
  CHECK_THAT(result.err, Contains("[rank 0] err\n"));
}

TEST_CASE("a live line passes at once and unchanged") {
  Launched job(
      {.script = "printf 'step 1\\r'; while [ ! -e $DIR/seen ]; do sleep 0.02; done; printf 'step 2\\r\\n'"});
  job.wait_for_output("step 1\r");
  job.create_file("seen");
  CHECK(job.finish().out == "step 1\rstep 2\r\n");
}

TEST_CASE("on a terminal ZERORUN_TERMINAL is set for ranks, and a live line shows before it ends") {
  Launched job({.script =
                    "printf \"[$ZERORUN_TERMINAL]\\rstep 1\"; while [ ! -e $DIR/seen ]; do sleep 0.02; done; "
                    "printf '\\rstep 2\\n'",
                .on_terminal = true});
  job.wait_for_output("[1]\rstep 1");
  job.create_file("seen");
  Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("[1]\rstep 1\rstep 2\n"));
}

TEST_CASE("a rank's stdin is /dev/null") {
  Launched job({.script = "cat; readlink /proc/self/fd/0"});
  CHECK(job.finish().out == "/dev/null\n");
}

TEST_CASE("output of a rank that ends while others go on is not held back") {
  Launched job({.options = {"--num_gpus", "2"},
                .script = "if [ $RANK = 0 ]; then printf 'no end'; exit 0; fi\n"
                          "while [ ! -e $DIR/seen ]; do sleep 0.02; done; echo late"});
  job.wait_for_output("no end");
  job.create_file("seen");
  Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK(result.out == "no end\n[rank 1] late\n");
}

TEST_CASE("a reader that has stalled does not keep the launcher from ending the job") {
  Launched job({.options = {"--num_gpus", "2", "--grace", "0.5"},
                .script = "trap '' TERM; : >$DIR/up$RANK; while :; do echo flood of output; done"});
  job.wait_for_file("up0");
  job.wait_for_file("up1");
  job.signal(SIGTERM);
  CHECK(job.finish_unread(5).exit_code == 128 + SIGTERM);
  job.wait_until_nothing_is_left();
}

TEST_CASE("a job whose stdout nobody reads any more is ended") {
  Launched job({.options = {"--num_gpus", "2"}, .script = "while :; do echo line; sleep 0.01; done"});
  job.wait_for_output("line");
  job.close_output();
  CHECK(job.finish(5).exit_code == 128 + SIGPIPE);
  job.wait_until_nothing_is_left();
}
