#include "launcher/line_tail.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "launcher/rank_status.h"

using Lines = std::vector<std::string>;
using namespace zerorun::launcher;

TEST_CASE("the tail keeps the last lines that are not blank") {
  LineTail tail;
  tail.feed("1\n2\n\n3\n  \n");
  Lines expected;
  for (int line = 1; line <= 19; ++line) {
    tail.feed("line " + std::to_string(line) + "\n");
    expected.push_back("line " + std::to_string(line));
  }
  tail.feed("6");
  tail.feed("6");
  expected.emplace_back("66");
  REQUIRE(expected.size() == LineTail::kLines);
  CHECK(tail.lines() == expected);
  CHECK(tail.lines() == expected);
}

TEST_CASE("of a line that '\\r' redraws, the last text is kept") {
  LineTail tail;
  tail.feed("10%\r20%\r30%\r\nend\r\n");
  CHECK(tail.lines() == Lines{"30%", "end"});
}

TEST_CASE("long lines are cut and control characters made visible") {
  LineTail tail;
  tail.feed(std::string(LineTail::kLongestLine + 1, 'x') + "\na\x1b[2J\tb\n");
  CHECK(tail.lines() == Lines{std::string(LineTail::kLongestLine, 'x') + " ...", "a?[2J\tb"});
}

TEST_CASE("wait statuses as texts and as exit codes") {
  const int exited_with_3 = 3 << 8;  // the encoding of wait(2) on Linux
  const int exited_with_2 = 2 << 8;
  CHECK(describe_end(exited_with_3) == "exited with code 3");
  CHECK(exit_code_of(exited_with_3) == 3);
  CHECK(was_user_mistake(exited_with_2));
  CHECK_FALSE(was_user_mistake(exited_with_3));
  CHECK_FALSE(was_user_mistake(SIGINT));
  CHECK(succeeded(0));
  CHECK_FALSE(succeeded(SIGKILL));
  CHECK(describe_end(SIGKILL) == "killed by signal 9 (SIGKILL)");
  CHECK(exit_code_of(SIGKILL) == 137);
  CHECK(describe_end(SIGSEGV | 0x80) == "killed by signal 11 (SIGSEGV)");  // with a core file
}
