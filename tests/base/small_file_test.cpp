// Tests how files that people write are read, and how their names are printed.
#include "base/small_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "base/printable.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a small file is read whole, from a pipe too, and nothing waits for ever") {
  const TemporaryFolder folder;
  CHECK(read_small_file(folder.write("a", "text\n"), 100).text == "text\n");
  CHECK(read_small_file(folder.write("empty", ""), 100).problem.empty());
  CHECK(read_small_file("/dev/null", 100).problem.empty());
  CHECK_THAT(read_small_file(folder / "none", 100).problem, Contains("No such file"));
  CHECK(read_small_file(folder / "", 100).problem == "it is a directory");
  CHECK(read_small_file("/dev/zero", 1 << 20).problem == "it has more than 1 MiB");
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_small_file(pipe, 100).problem == "it is a pipe into which nobody writes");

  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::thread writer([&] {
    for (const char* part : {"one ", "two"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (::write(ends[1], part, std::string(part).size()) < 0) return;
    }
    ::close(ends[1]);
  });
  CHECK(read_small_file("/proc/self/fd/" + std::to_string(ends[0]), 100).text == "one two");
  writer.join();
  ::close(ends[0]);
}

TEST_CASE("control characters and bytes that are not UTF-8 are not printed") {
  CHECK(printable("a\x1b]0;owned\x07z\n\x7f") == "a?]0;owned?z??");
  CHECK(printable("a\n\tb", "\n\t") == "a\n\tb");
  CHECK(printable("für 世界 🙂") == "für 世界 🙂");
  CHECK(printable("\xff\xfe\xc3") == "???");
  CHECK(printable("\xc2\x9b[31m") == "??[31m");  // a control character of two bytes
  CHECK(printable("\xed\xa0\x80 \xc0\xaf \xf5\x80\x80\x80") ==
        "??? ?? ????");  // surrogate, overlong, too large
}

}  // namespace
}  // namespace zerorun::testing
