#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "tests/support/temporary_folder.h"

using namespace zerorun;
namespace fs = std::filesystem;

namespace {

std::string refusal_of(const fs::path& file) {
  return testing::user_error([&] { load_config(file, 1); });
}

}  // namespace

TEST_CASE("a file is loaded, and errors about its content name the file") {
  const testing::TemporaryFolder folder;
  const fs::path sound =
      folder.write("sound.json", "\xEF\xBB\xBF{\r\n  \"train_batch_size\": 8, // all\r\n}\r\n");
  CHECK(load_config(sound, 2).batch.micro_batch_size_per_gpu == 4);
  const fs::path wrong = folder.write("wrong.json", "{\n  \"train_batch_size\": 0\n}");
  CHECK_THAT(refusal_of(wrong),
             Catch::StartsWith(wrong.string() + ":2:23: error: train_batch_size: expected "));
  const fs::path empty = folder.write("empty.json", "");
  CHECK_THAT(refusal_of(empty),
             Catch::StartsWith(empty.string() + ":1:1: error: top level: expected an object"));
}

TEST_CASE("errors about files that cannot be read name the file") {
  const testing::TemporaryFolder folder;
  const fs::path missing = folder / "missing.json";
  CHECK_THAT(refusal_of(missing),
             Catch::StartsWith(missing.string() + ": ") && Catch::Contains("no such file"));
  CHECK_THAT(refusal_of(folder / ""),
             Catch::StartsWith((folder / "").string() + ": ") && Catch::Contains("found a directory"));
  fs::create_symlink(folder / "loop", folder / "loop");
  CHECK_THAT(refusal_of(folder / "loop"), Catch::Contains("cannot be read: "));
  CHECK_THAT(refusal_of("/dev/zero"), Catch::Contains("more than 16 MiB"));
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal_of(folder / "pipe"), Catch::Contains("it is a pipe into which nobody writes"));
  if (geteuid() != 0) {  // root can read every file
    const fs::path closed = folder.write("closed.json", "{}");
    fs::permissions(closed, fs::perms::none);
    CHECK_THAT(refusal_of(closed), Catch::Contains("cannot be read: Permission denied"));
  }
}

TEST_CASE("a world size of 0 is an InternalError") {
  CHECK_THROWS_AS(parse_config("{\"train_batch_size\": 1}", "conf", 0), InternalError);
}
