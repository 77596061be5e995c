#include "samples/common/text.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <limits>
#include <sstream>
#include <thread>

#include "samples/common/csv_log.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

TEST_CASE("numbers are grouped by thousands") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(1234567) == "1,234,567");
  CHECK(with_commas(-123456) == "-123,456");
  CHECK(with_commas(-1234) == "-1,234");
}

TEST_CASE("control characters and other special bytes are written as escapes") {
  CHECK(printable("a\tb\n ~") == "a\tb\n ~");
  CHECK(printable(std::string("\0\x1b[2J\r\x7f\xc3\xa9", 9)) == "\\x00\\x1b[2J\\x0d\\x7f\\xc3\\xa9");
}

TEST_CASE("the csv file has every double exactly, and each line as soon as it is written") {
  const TemporaryFolder folder;
  const std::string file = folder / "log.csv";
  CsvLog log(file);
  CHECK(read_file(file) == "step,loss,grad_norm,lr,loss_scale,skipped\n");
  const double loss = 1.0 / 3.0, norm = std::numeric_limits<double>::denorm_min();
  log.write({.step = 41, .loss = loss, .grad_norm = norm, .lr = 0.001, .loss_scale = 65536, .skipped = 2});
  std::istringstream lines(read_file(file));
  std::string header, fields[6];
  std::getline(lines, header);
  for (int i = 0; i < 6; ++i) std::getline(lines, fields[i], i < 5 ? ',' : '\n');
  CHECK(fields[0] == "41");
  CHECK(std::strtod(fields[1].c_str(), nullptr) == loss);
  CHECK(std::strtod(fields[2].c_str(), nullptr) == norm);
  CHECK(fields[3] == "0.001");
  CHECK(fields[4] == "65536");
  CHECK(fields[5] == "2");
}

TEST_CASE("a csv file may be a pipe, also when training continues") {
  const TemporaryFolder folder;
  const std::string file = folder / "pipe";
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  std::string read;
  std::thread reader([&] { read = read_file(file); });
  { CsvLog log(file, 7); }
  reader.join();
  CHECK(read == "step,loss,grad_norm,lr,loss_scale,skipped\n");
}

TEST_CASE("a csv file that cannot be written is named") {
  const TemporaryFolder folder;
  CHECK_THAT(user_error([&] { CsvLog{folder / "none" / "log.csv"}; }),
             Catch::Matchers::Contains("--csv") && Catch::Matchers::Contains("log.csv"));
}

}  // namespace
}  // namespace zerorun::testing
