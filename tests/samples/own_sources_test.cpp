#include "samples/gpt2/own_sources.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;

TEST_CASE("ZeroRun's own sources are documents and C++ files, sorted, without what was built or downloaded") {
  const TemporaryFolder folder;
  for (const char* name : {"docs", "zero", "build", "build-asan", ".deps"}) {
    std::filesystem::create_directory(folder / name);
  }
  for (const char* name : {"README.md", "docs/a.md", "zero/layout.h", "zero/layout.cpp", "zero/data.json",
                           "build/x.cpp", "build-asan/x.h", ".deps/x.h", "LICENSE"}) {
    folder.write(name, "text");
  }
  const std::vector<std::filesystem::path> expected = {folder / "README.md", folder / "docs/a.md",
                                                       folder / "zero/layout.cpp", folder / "zero/layout.h"};
  CHECK(own_sources(folder / "") == expected);
}

TEST_CASE("the sources of this checkout are found") {
  const std::filesystem::path checkout = checkout_above(binary_folder());
  CHECK(std::filesystem::equivalent(checkout, source_folder()));
  const auto files = own_sources(checkout);
  CHECK(std::is_sorted(files.begin(), files.end()));
  CHECK(std::find(files.begin(), files.end(), checkout / "samples/gpt2/own_sources.h") != files.end());
}

TEST_CASE("if the sources are missing, the error asks for --data") {
  const TemporaryFolder folder;
  CHECK_THAT(user_error([&] { own_sources(folder / "gone"); }), Contains("--data FILE") && Contains("gone"));
  CHECK_THAT(user_error([&] { own_sources(folder / ""); }), Contains("--data FILE"));
}

}  // namespace
}  // namespace zerorun::testing
