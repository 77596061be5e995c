#include "samples/gpt2/corpus.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("files are joined in the order given, byte by byte") {
  const TemporaryFolder folder;
  const auto first = folder.write("b", std::string("\xff\0z", 3)), second = folder.write("a", "12");
  const Corpus corpus = read_corpus({first, second, first}, 8);
  CHECK(corpus.bytes == std::vector<uint8_t>{0xff, 0, 'z', '1', '2', 0xff, 0, 'z'});
  CHECK(corpus.description == "3 files");
}

TEST_CASE("a file of several megabytes is read whole") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400'000; ++i) text += std::to_string(i) + "\n";
  const Corpus corpus = read_corpus({folder.write("x", text)}, 1);
  CHECK(std::string(corpus.bytes.begin(), corpus.bytes.end()) == text);
}

TEST_CASE("unusable data is named") {
  const TemporaryFolder folder;
  const auto good = folder.write("good", "0123456789");
  CHECK_THAT(user_error([&] {
               read_corpus({good, folder / "absent"}, 1);
             }),
             Contains("absent: no such file"));
  CHECK_THAT(user_error([&] { read_corpus({folder / ""}, 1); }), Contains("is a directory"));
  CHECK_THAT(user_error([&] {
               read_corpus({good, folder.write("nothing", "")}, 1);
             }),
             Contains("nothing: the file is empty"));
  CHECK_THAT(user_error([&] { read_corpus({good}, 11); }),
             Contains("good with 10 bytes is too short") && Contains("11") && Contains("--seq"));
  CHECK(read_corpus({good}, 10).bytes.size() == 10);
}

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
  const auto files = own_sources(ZERORUN_SOURCE_DIR);
  CHECK(std::is_sorted(files.begin(), files.end()));
  CHECK(std::find(files.begin(), files.end(), ZERORUN_SOURCE_DIR "/samples/gpt2/corpus.h") != files.end());
}

TEST_CASE("sources that are gone ask for --data") {
  const TemporaryFolder folder;
  CHECK_THAT(user_error([&] { own_sources(folder / "gone"); }), Contains("--data FILE") && Contains("gone"));
  CHECK_THAT(user_error([&] { own_sources(folder / ""); }), Contains("--data FILE"));
}

}  // namespace
}  // namespace zerorun::testing
