// Tests that checkpoints are published, replaced, removed and refused. The last test makes each file system
// call fail in turn.
#include "checkpoint/publication.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

void publish(FileSystem& files, const fs::path& directory, const std::string& tag, const std::string& text,
             bool save_latest = true, int64_t keep_last = 0) {
  Publication publication(files, directory, tag);
  write_text(files, publication.folder() / "data", text);
  publication.publish("{}", save_latest);
  publication.remove_old(keep_last);
}

}  // namespace

TEST_CASE("Tags are published, replaced, and named in latest if the caller asks for it") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const fs::path directory = folder / "a/b";
  publish(files, directory, "one", "1");
  publish(files, directory, "two", "2", false);
  CHECK(published_tags(files, directory) == std::vector<std::string>{"one", "two"});
  CHECK(latest_tag(files, directory) == "one");
  publish(files, directory, "two", "22");
  CHECK(latest_tag(files, directory) == "two");
  CHECK(read_file(directory / "two" / "data") == "22");
  {
    const Publication left(files, directory, "three");
    write_text(files, left.folder() / "data", "3");
  }
  CHECK(files.list(directory) == std::vector<std::string>{"latest", "one", "two"});
  CHECK(!latest_tag(files, folder / "elsewhere"));
  CHECK(published_tags(files, folder / "elsewhere").empty());
}

TEST_CASE("Files that a killed run has left are no checkpoint, and do not disturb later saves") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  fs::create_directories(folder / ".one.partial");
  folder.write(".one.partial/data", "torn");
  folder.write(".latest.partial", "to");
  CHECK(published_tags(files, folder / "").empty());
  publish(files, folder / "", "one", "1");
  CHECK(read_file(folder / "one" / "data") == "1");
  CHECK(latest_tag(files, folder / "") == "one");
}

TEST_CASE("A folder that is no checkpoint is not replaced, and a slash at the end changes nothing") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "mine");
  folder.write("mine/notes", "precious");
  CHECK_THAT(user_error([&] { publish(local_file_system(), folder / "", "mine", "1"); }),
             Contains("exists and is not a checkpoint, so no checkpoint replaces it"));
  CHECK(read_file(folder / "mine" / "notes") == "precious");
  MemoryFileSystem memory;
  publish(memory, "/a/b/", "one", "1");
  const auto is_sync_of_a = [&](const Operation& operation) {
    return operation.kind == Operation::Kind::sync && operation.node == 1;  // /a is the first new node
  };
  CHECK(std::ranges::count_if(memory.operations(), is_sync_of_a) == 1);
}

TEST_CASE("keep_last keeps the tags of the last steps, the tag in latest, and tags not named after a step") {
  MemoryFileSystem files;
  publish(files, "/a", "global_step7", "7");
  publish(files, "/a", "global_step100", "100", false);
  publish(files, "/a", "best", "b", false);
  publish(files, "/a", "global_step9", "9", false, 3);
  CHECK(published_tags(files, "/a") ==
        std::vector<std::string>{"best", "global_step100", "global_step7", "global_step9"});
  publish(files, "/a", "global_step20", "20", false, 2);  // `latest` names step 7, so step 7 stays
  CHECK(published_tags(files, "/a") ==
        std::vector<std::string>{"best", "global_step100", "global_step20", "global_step7"});
  publish(files, "/a", "global_step8", "8", true, 1);
  CHECK(published_tags(files, "/a") == std::vector<std::string>{"best", "global_step100", "global_step8"});
  CHECK(files.list("/a") == std::vector<std::string>{"best", "global_step100", "global_step8", "latest"});
}

TEST_CASE("A tag must be a valid name of a folder") {
  for (const std::string tag : {"", ".", "..", ".hidden", "a/b", "latest", "a\nb"})
    CHECK_THAT(user_error([&] { check_tag(tag); }), Contains("the name of a folder"));
  CHECK_THAT(user_error([] { check_tag(std::string(201, 'x')); }), Contains("200 bytes"));
  CHECK_NOTHROW(check_tag("global_step100"));
}

TEST_CASE("If any call fails, latest names a complete checkpoint, and a second try succeeds") {
  bool all_tried = false;
  for (int64_t call = 0; !all_tried; ++call) {
    CAPTURE(call);
    MemoryFileSystem memory;
    publish(memory, "/a", "one", "1");
    FaultyFileSystem faulty(memory, {.call = call, .error = call % 2 == 0 ? ENOSPC : EIO});
    const std::string error = user_error([&] { publish(faulty, "/a", "two", "2"); });
    all_tried = faulty.calls() <= call;
    CHECK((error == "no error") == all_tried);
    if (!all_tried) CHECK_THAT(error, Contains("/a") && Contains("cannot be"));
    const auto latest = latest_tag(memory, "/a");
    REQUIRE(latest);
    CHECK(read_text(memory, fs::path("/a") / *latest / "data") == (*latest == "one" ? "1" : "2"));
    publish(memory, "/a", "two", "22");
    CHECK(latest_tag(memory, "/a") == "two");
    CHECK(read_text(memory, "/a/two/data") == "22");
  }
}

}  // namespace zerorun::testing
