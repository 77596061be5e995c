// Tests that checkpoints are published, replaced, removed and refused, and that nothing else is removed. The
// last tests make each file system call fail in turn.
#include "checkpoint/publication.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "checkpoint/old_tags.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/publish.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

OldTag old_tag(FileSystem& files, const fs::path& directory, const std::string& tag) {
  return {.tag = tag, .folder = files.identity(directory / tag).value()};
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
  CHECK(read_file(directory / "two" / "data.safetensors") == "22");
  {
    const Publication left(files, directory, "three");
    write_text(files, left.folder() / "data.safetensors", "3");
  }
  CHECK(names_in(directory) == std::set<std::string>{"latest", "one", "two"});
  CHECK(!latest_tag(files, folder / "elsewhere"));
  CHECK(published_tags(files, folder / "elsewhere").empty());
}

TEST_CASE("Files that a killed run has left are no checkpoint, and do not disturb later saves") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  fs::create_directories(folder / ".one.partial");
  folder.write(".one.partial/data.safetensors", "torn");
  CHECK(published_tags(files, folder / "").empty());
  publish(files, folder / "", "one", "1");
  CHECK(read_file(folder / "one" / "data.safetensors") == "1");
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

TEST_CASE("keep_last keeps what was saved last, the tag in latest, and tags not named after a step") {
  MemoryFileSystem files;
  publish(files, "/a", "global_step7", "7");
  publish(files, "/a", "global_step100", "100", false);
  publish(files, "/a", "best", "b", false);
  publish(files, "/a", "global_step9", "9", false, 3);
  CHECK(published_tags(files, "/a") ==
        std::vector<std::string>{"best", "global_step100", "global_step7", "global_step9"});
  publish(files, "/a", "global_step20", "20", false, 2);  // `latest` names step 7, so step 7 stays
  CHECK(published_tags(files, "/a") ==
        std::vector<std::string>{"best", "global_step20", "global_step7", "global_step9"});
  publish(files, "/a", "global_step8", "8", true, 1);  // a training that went back to an earlier step
  CHECK(published_tags(files, "/a") == std::vector<std::string>{"best", "global_step8"});
  CHECK(files.list("/a") == std::vector<std::string>{"best", "global_step8", "latest"});
}

TEST_CASE("Checkpoints without a saving number are older than those with one, by step") {
  const TemporaryFolder folder;
  for (const int step : {900, 1000}) make_checkpoint(folder / ("global_step" + std::to_string(step)));
  publish(local_file_system(), folder / "", "global_step5", "5", true, 2);
  CHECK(names_in(folder / "") == std::set<std::string>{"global_step5", "global_step1000", "latest"});
}

TEST_CASE("The saving number grows in the folder, also from one process to the next") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  make_checkpoint(folder / "mine", 41);
  CHECK(Publication(files, folder / "", "a").saving() == 42);
  const auto lock = files.lock_folder(folder / "");
  CHECK(Publication(files, folder / "", "a").saving() == 42);
  {
    Publication publication(files, folder / "", "a");
    CHECK(publication.saving() == 43);
    write_text(files, publication.folder() / "data.safetensors", "1");
    publication.publish(manifest_of("data.safetensors", 99), true);  // another host has a higher one
  }
  CHECK(Publication(files, folder / "", "a").saving() == 100);
}

TEST_CASE("Only a folder with a manifest of ours is a checkpoint, and one that holds more is not replaced") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  fs::create_directories(folder / "extension");
  folder.write("extension/manifest.json", "{}");
  CHECK_THAT(user_error([&] { publish(files, folder / "", "extension", "1"); }),
             Contains("is not a checkpoint"));
  publish(files, folder / "", "best", "1");
  fs::create_directories(folder / "best/hf");
  folder.write("best/hf/model", "precious");
  CHECK_THAT(user_error([&] { publish(files, folder / "", "best", "2"); }),
             Contains("best holds hf, which is no part of the checkpoint"));
  CHECK_THAT(user_error([&] { remove_tag(files, folder / "", old_tag(files, folder / "", "best")); }),
             Contains("best holds hf"));
  CHECK(read_file(folder / "best/data.safetensors") == "1");
  CHECK(names_in(folder / "") == std::set<std::string>{"best", "extension", "latest"});
  // keep_last leaves out foreign folders, and those that hold more.
  fs::create_directories(folder / "global_step1");
  folder.write("global_step1/manifest.json", "{}");
  make_checkpoint(folder / "global_step2");
  folder.write("global_step2/notes", "precious");
  make_checkpoint(folder / "global_step3");
  publish(files, folder / "", "global_step4", "4", true, 1);
  CHECK(names_in(folder / "") ==
        std::set<std::string>{"best", "extension", "global_step1", "global_step2", "global_step4", "latest"});
  CHECK(names_in(folder / "global_step2") ==
        std::set<std::string>{"data.safetensors", "manifest.json", "notes"});
}

TEST_CASE("Nothing is removed or replaced through a symbolic link") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const fs::path out = folder / "out";
  make_checkpoint(folder / "archive/global_step1");
  make_checkpoint(out / "global_step2");
  make_checkpoint(out / "global_step3");
  fs::create_directory_symlink("../archive/global_step1", out / "global_step1");
  make_checkpoint(out / "global_step4");
  fs::create_directory_symlink("global_step2", out / "best");
  fs::create_symlink("global_step4/data.safetensors", out / "best.safetensors");
  CHECK_THAT(user_error([&] { publish(files, out, "best", "1"); }), Contains("best is a symbolic link to"));
  CHECK_THAT(user_error([&] { remove_tag(files, out, old_tag(files, out, "best")); }),
             Contains("best is a symbolic link to"));
  fs::create_directories(folder / "victim");
  folder.write("victim/thesis.safetensors", "precious");
  folder.write("victim/.save_id", marker_text("0123456789abcdef"));
  fs::create_directory_symlink("../victim", out / ".t.0123456789abcdef.partial");
  fs::create_directory_symlink("../victim", out / ".t.partial");
  publish(files, out, "global_step9", "9", true, 1);
  CHECK(names_in(folder / "archive/global_step1") ==
        std::set<std::string>{"data.safetensors", "manifest.json"});
  CHECK(names_in(out / "global_step2") == std::set<std::string>{"data.safetensors", "manifest.json"});
  CHECK(names_in(out / "global_step4") == std::set<std::string>{"data.safetensors", "manifest.json"});
  CHECK(fs::is_symlink(out / "best"));
  CHECK(fs::is_symlink(out / "global_step1"));
  CHECK_FALSE(fs::exists(out / "global_step3"));
  CHECK(read_file(folder / "victim/thesis.safetensors") == "precious");
}

TEST_CASE(
    "A latest that names no checkpoint stops every removal; blanks and a byte order mark do not matter") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  for (const int step : {1, 2, 3}) make_checkpoint(folder / ("global_step" + std::to_string(step)));
  folder.write("latest", "global_step7\n");
  publish(files, folder / "", "global_step4", "4", false, 1);
  CHECK(published_tags(files, folder / "").size() == 4);
  CHECK_THAT(user_error([&] { latest_to_keep(files, folder / ""); }), Contains("names global_step7"));
  folder.write("latest", "../x");
  publish(files, folder / "", "global_step5", "5", false, 1);
  CHECK(published_tags(files, folder / "").size() == 5);
  folder.write("latest", "\xEF\xBB\xBF global_step1 \r\n");
  CHECK(latest_tag(files, folder / "") == "global_step1");
  publish(files, folder / "", "global_step6", "6", false, 1);
  CHECK(published_tags(files, folder / "") == std::vector<std::string>{"global_step1", "global_step6"});
}

TEST_CASE("The marker is on the disk before the first data file") {
  MemoryFileSystem files;
  const Publication publication(files, "/a", "one");
  const std::vector<Operation>& all = files.operations();
  const auto marker = std::ranges::find(all, kMarkerName, &Operation::other);
  REQUIRE(marker != all.end());
  // Nothing comes after it: as soon as it has its name, other ranks of the host write.
  CHECK(marker + 1 == all.end());
  CHECK(std::ranges::any_of(all, [&](const Operation& operation) {
    return operation.kind == Operation::Kind::sync && operation.node == marker->child;
  }));
}

TEST_CASE("A tag that is saved anew, or named in latest, after it was chosen for removal stays") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  for (const std::string tag : {"global_step1", "global_step2"}) publish(files, folder / "", tag, "1");
  const OldTag old = old_tag(files, folder / "", "global_step1");
  SECTION("saved anew before the removal") {
    publish(files, folder / "", "global_step1", "2", false);
    CHECK_THAT(user_error([&] { remove_tag(files, folder / "", old); }), Contains("saved anew meanwhile"));
    CHECK(read_file(folder / "global_step1/data.safetensors") == "2");
  }
  SECTION("saved anew during the removal") {
    FaultyFileSystem faulty(
        files, {.call = 0, .meanwhile = [&] { publish(files, folder / "", "global_step1", "2", false); }});
    CHECK_THAT(user_error([&] { remove_tag(faulty, folder / "", old); }), Contains("saved anew meanwhile"));
    CHECK(read_file(folder / "global_step1/data.safetensors") == "2");
  }
  SECTION("named in latest") {
    folder.write("latest", "global_step1\n");
    CHECK_THAT(user_error([&] { remove_tag(files, folder / "", old); }), Contains("named by latest"));
    CHECK_FALSE(try_remove_tag(files, folder / "", old));
    CHECK(read_file(folder / "global_step1/data.safetensors") == "1");
  }
  CHECK(names_in(folder / "") == std::set<std::string>{"global_step1", "global_step2", "latest"});
}

TEST_CASE("A folder that someone else removes at the same moment is removed") {
  struct TwoRemovers : FaultyFileSystem {
    TwoRemovers() : FaultyFileSystem(local_file_system(), {}) {}
    int remove_folder(const fs::path& folder) override {
      ::rmdir(folder.c_str());
      return FaultyFileSystem::remove_folder(folder);
    }
  } files;
  const TemporaryFolder folder;
  make_checkpoint(folder / "one");
  CHECK(user_error([&] { remove_own_folder(files, folder / "one"); }) == "no error");
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("A folder from which another program removes or adds a file is not published") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  publish(files, folder / "", "one", "1");
  {
    Publication publication(files, folder / "", "one");
    CHECK_THAT(user_error([&] { publication.publish(manifest_of("data.safetensors", 1), true); }),
               Contains("data.safetensors is gone"));
  }
  {
    Publication publication(files, folder / "", "one");
    write_text(files, publication.folder() / "data.safetensors", "2");
    write_text(files, publication.folder() / "more.safetensors", "2");
    CHECK_THAT(user_error([&] { publication.publish(manifest_of("data.safetensors", 1), true); }),
               Contains("holds more.safetensors"));
  }
  CHECK(read_file(folder / "one/data.safetensors") == "1");
  CHECK(names_in(folder / "") == std::set<std::string>{"latest", "one"});
}

TEST_CASE("A tag must be a valid name of a folder") {
  for (const std::string tag : {"", ".", "..", ".hidden", "a/b", "latest", "a\nb", "a\rb", "a\xff"})
    CHECK_THAT(user_error([&] { check_tag(tag); }), Contains("the name of a folder"));
  CHECK_THAT(user_error([] { check_tag(std::string("a\0b", 3)); }), Contains("a?b"));
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
    const auto names = memory.list("/a").value();
    for (const std::string& name : names) CHECK_FALSE(tag_of_partial(name));
    const auto latest = latest_tag(memory, "/a");
    REQUIRE(latest);
    CHECK(read_text(memory, fs::path("/a") / *latest / "data.safetensors") == (*latest == "one" ? "1" : "2"));
    publish(memory, "/a", "two", "22");
    CHECK(latest_tag(memory, "/a") == "two");
    CHECK(read_text(memory, "/a/two/data.safetensors") == "22");
  }
}

TEST_CASE("A save that fails after it has replaced a tag leaves no copy of the old one") {
  int after_replacement = 0;
  bool all_tried = false;
  for (int64_t call = 0; !all_tried; ++call) {
    CAPTURE(call);
    MemoryFileSystem memory;
    publish(memory, "/a", "one", "1");
    FaultyFileSystem faulty(memory, {.call = call, .error = EIO});
    const std::string error = user_error([&] { publish(faulty, "/a", "one", "2"); });
    all_tried = faulty.calls() <= call;
    const bool is_replaced = read_text(memory, "/a/one/data.safetensors") == "2";
    after_replacement += is_replaced && error != "no error" ? 1 : 0;
    // If the folder cannot be synced, a crash could bring the old tag back, so the next job removes it.
    const bool may_stay = error.find("/a cannot be synced") != std::string::npos;
    const auto names = memory.list("/a").value();
    for (const std::string& name : names) CHECK((!tag_of_partial(name) || may_stay));
  }
  CHECK(after_replacement >= 5);  // the sync of the folder, and what name_latest() does
}

}  // namespace zerorun::testing
