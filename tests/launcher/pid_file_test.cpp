// Tests the file of --save_pid.
#include "launcher/pid_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace launcher;
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("the file of --save_pid exists as long as the job, and replaces only a file of this user") {
  const TemporaryFolder folder;
  const std::string name = std::to_string(::getpid()) + ".deepspeed";
  const auto make = [&] { return std::make_unique<PidFile>((folder / "").string()); };
  folder.write(name, "an old job's");
  auto file = make();
  CHECK(read_file(folder / name) == std::to_string(::getpid()));
  file.reset();
  CHECK_FALSE(fs::exists(folder / name));

  const fs::path precious = folder.write("precious", "thesis");
  fs::create_symlink(precious, folder / name);
  CHECK_THAT(user_error(make), Contains("--save_pid: ") && Contains(name + " exists and is no regular file"));
  CHECK(fs::is_symlink(folder / name));
  CHECK(read_file(precious) == "thesis");
  fs::remove(folder / name);

  REQUIRE(::mkfifo((folder / name).c_str(), 0600) == 0);
  CHECK_THAT(user_error(make), Contains("no regular file of this user"));
  fs::remove(folder / name);
  CHECK_THAT(user_error([] { PidFile nowhere("/nowhere"); }), Contains("cannot write /nowhere/"));
}

}  // namespace
}  // namespace zerorun::testing
