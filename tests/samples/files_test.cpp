// Tests how samples read files and choose folders.
#include "samples/common/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

// Sets an environment variable and restores it.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    if (old) old_ = old;
    had_ = old != nullptr;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { had_ ? ::setenv(name_, old_.c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

TEST_CASE("JSON that is nested deeper than real files is an error, not a stack overflow") {
  const TemporaryFolder folder;
  for (const int depth : {101, 500'000}) {
    const fs::path file = folder.write(
        "config.json", "{\"n_layer\": " + std::string(depth, '[') + std::string(depth, ']') + "}");
    CHECK_THAT(user_error([&] { read_json(file); }),
               Contains("config.json: expected JSON of at most 100 levels"));
  }
  CHECK(read_json(folder.write("fine.json", std::string(99, '[') + std::string(99, ']'))).is_array());
}

TEST_CASE("a pipe, a device or a huge sparse file is no file of JSON, and is not waited for") {
  const TemporaryFolder folder;
  const auto refusal = [](const fs::path& file) { return user_error([&] { read_json(file); }); };
  REQUIRE(::mkfifo((folder / "pipe.json").c_str(), 0600) == 0);
  CHECK_THAT(refusal(folder / "pipe.json"), Contains("pipe.json: is no regular file"));
  CHECK_THAT(refusal("/dev/zero"), Contains("/dev/zero: is no regular file"));
  CHECK_THAT(refusal(folder / ""), Contains("is a folder, expected a file"));
  CHECK_THAT(refusal(folder / "none"), Contains("none: cannot be opened: No such file"));
  fs::resize_file(folder.write("sparse.json", ""), 5'000'000'000);
  CHECK_THAT(refusal(folder / "sparse.json"), Contains("has 5000000000 bytes, expected at most 1073741824"));
}

TEST_CASE("a folder for caches belongs to this user alone") {
  const TemporaryFolder folder;
  const Variable home("HOME", folder / "home");
  const Variable temporary("TMPDIR", folder / "");
  {
    const Variable caches("XDG_CACHE_HOME", folder / "caches");
    CHECK(user_cache_folder("tokens") == folder / "caches" / "tokens");
  }
  const Variable no_caches("XDG_CACHE_HOME", "relative");  // the standard says: not used
  CHECK(user_cache_folder("tokens") == folder / "home" / ".cache" / "tokens");
  CHECK(fs::is_directory(folder / "home" / ".cache" / "tokens"));

  const Variable no_home("HOME", "/proc/none");
  const fs::path shared = folder / ("tokens-" + std::to_string(::getuid()));
  CHECK(user_cache_folder("tokens") == shared);
  CHECK((fs::status(shared).permissions() & fs::perms::all) == fs::perms::owner_all);
  const auto refused = [] { return user_error([] { user_cache_folder("tokens"); }); };
  fs::permissions(shared, fs::perms::all);
  CHECK_THAT(refused(), Contains("is no folder of this user that only this user can write"));
  fs::remove(shared);
  fs::create_directory_symlink(folder / "caches", shared);
  CHECK_THAT(refused(), Contains("is no folder of this user"));
  fs::remove(shared);
  if (::getuid() != 0) return;
  fs::create_directory(shared);
  REQUIRE(::chown(shared.c_str(), 65534, 65534) == 0);
  CHECK_THAT(refused(), Contains("is no folder of this user"));
}

}  // namespace
}  // namespace zerorun::testing
