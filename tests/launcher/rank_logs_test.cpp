// Tests the files with the output of ranks.
#include "launcher/rank_logs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using zerorun::UserError;
using zerorun::testing::TemporaryFolder;
using namespace zerorun::launcher;

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("log files of ranks are new files: no link is followed, and no pipe is waited for") {
  const TemporaryFolder folder;
  LogOptions options;
  options.one_file_folder = folder / "";
  options.run = "RUN";
  const std::string log = folder / "RUN_rank3.log";
  REQUIRE(::symlink((folder / "elsewhere").c_str(), log.c_str()) == 0);
  CHECK_THROWS_WITH(RankLogs(options, 3, 1), Contains("RUN_rank3.log: File exists"));
  CHECK_FALSE(std::filesystem::exists(folder / "elsewhere"));
  std::filesystem::remove(log);
  REQUIRE(::mkfifo(log.c_str(), 0600) == 0);
  CHECK_THROWS_AS(RankLogs(options, 3, 1), UserError);
  std::filesystem::remove(log);
  std::string failure;
  CHECK_FALSE(RankLogs(options, 3, 1).feed(0, Stream::err, "line\n", failure));
  CHECK(content(log) == "line\n");
}

TEST_CASE("the folder of a run is new, and each host has one") {
  const TemporaryFolder folder;
  LogOptions options;
  options.folder = folder / "logs";
  options.redirects.all = 3;
  options.run = "RUN";
  std::string failure;
  for (const int node : {0, 1})
    CHECK_FALSE(RankLogs(options, 2 * node, 1, node).feed(0, Stream::out, std::to_string(node), failure));
  for (const int node : {0, 1}) {
    const std::string number = std::to_string(node);
    CHECK(content(folder / ("logs/RUN_node" + number + "/attempt_0/0/stdout.log")) == number);
  }
  CHECK_FALSE(RankLogs(options, 0, 1).feed(0, Stream::out, "alone", failure));
  CHECK(content(folder / "logs/RUN/attempt_0/0/stdout.log") == "alone");
  CHECK_THROWS_WITH(RankLogs(options, 0, 1), Contains("logs/RUN: File exists"));
  std::filesystem::create_directory(folder / "mine");
  REQUIRE(::symlink((folder / "mine").c_str(), (folder / "logs/RUN_node7").c_str()) == 0);
  CHECK_THROWS_AS(RankLogs(options, 0, 1, 7), UserError);
  CHECK(std::filesystem::is_empty(folder / "mine"));
}
