// Tests which leftovers of earlier and of other jobs a publication removes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/publication.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/publish.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// A marker of a save on another host.
std::string marker_of_other_host(const std::string& id) {
  return "A checkpoint that ZeroRun is saving: " + id + "\non host elsewhere\n";
}

void make_two_days_old(const fs::path& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(48));
}

}  // namespace

TEST_CASE("Leftovers of ours are swept by the next job; folders that only look like them stay") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const std::string id = new_save_id();
  for (const char* name : {".one.", ".two.", ".other."}) {
    fs::create_directories(folder / (name + id + ".partial"));
    folder.write(name + id + ".partial/rank.safetensors", "torn");
  }
  folder.write(".one." + id + ".partial/.save_id", marker_text(id));
  folder.write(".two." + id + ".partial/.save_id", marker_text(id));
  folder.write(".two." + id + ".partial/notes", "precious");
  make_checkpoint(folder / (".replaced." + id + ".partial"));
  folder.write(".latest." + id + ".partial", "one");
  make_two_days_old(folder / (".latest." + id + ".partial"));
  std::set<std::string> names = {".two." + id + ".partial", ".other." + id + ".partial", "three", "latest"};
  // Names without an id are the user's.
  fs::create_directories(folder / ".download.partial");
  make_checkpoint(folder / ".copy.partial");
  folder.write(".latest.partial", "mine");
  for (const std::string name : {".download.partial", ".copy.partial", ".latest.partial"}) {
    make_two_days_old(folder / name);
    names.insert(name);
  }
  publish(files, folder / "", "three", "3");
  CHECK(names_in(folder / "") == names);
  CHECK(names_in(folder / (".two." + id + ".partial")).size() == 3);
}

TEST_CASE("What a job of another host may still need is swept after a day only") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const std::string id = new_save_id();
  const std::string marked = ".one." + id + ".partial", empty = ".two." + id + ".partial";
  const std::string begun = ".four." + id + ".partial", latest = ".latest." + id + ".partial";
  for (const std::string& name : {marked, empty, begun}) fs::create_directories(folder / name);
  folder.write(begun + "/" + kUnfinishedMarker, "");
  folder.write(marked + "/.save_id", marker_of_other_host(id));
  folder.write(marked + "/rank.safetensors", "1");
  folder.write(latest, "one");
  publish(files, folder / "", "three", "3");
  CHECK(names_in(folder / "") == std::set<std::string>{marked, empty, begun, latest, "three", "latest"});
  CHECK(names_in(folder / marked).size() == 2);
  for (const std::string& name : {marked, empty, begun, latest}) make_two_days_old(folder / name);
  publish(files, folder / "", "three", "3");
  CHECK(names_in(folder / "") == std::set<std::string>{"three", "latest"});
}

TEST_CASE("If another job sweeps during a save, the save fails or its tag is whole") {
  const bool replaces = GENERATE(false, true);
  int failures = 0;
  bool all_tried = false;
  for (int64_t call = 0; !all_tried; ++call) {
    CAPTURE(replaces, call);
    const TemporaryFolder folder;
    if (replaces) publish(local_file_system(), folder / "", "one", "old");
    FaultyFileSystem files(local_file_system(),
                           {.call = call, .meanwhile = [&] { sweep(local_file_system(), folder / "", {}); }});
    const std::string error = user_error([&] { publish(files, folder / "", "one", "1"); });
    all_tried = files.calls() <= call;
    failures += error == "no error" ? 0 : 1;
    if (error == "no error") {
      CHECK(read_file(folder / "one/data.safetensors") == "1");
    } else {
      CHECK(fs::exists(folder / "one") == replaces);
      if (replaces) CHECK(read_file(folder / "one/data.safetensors") == "old");
    }
    CHECK(names_in(folder / "").size() == (fs::exists(folder / "one") ? 2 : 0));
  }
  CHECK(failures > 3);
}

TEST_CASE("If a job publishes while another one sweeps its folder, the save fails or its tag is whole") {
  struct Sweeper : FaultyFileSystem {
    Sweeper() : FaultyFileSystem(local_file_system(), {}) {}
    int remove_at(int folder, const std::string& name) override {
      if (before_removals) std::exchange(before_removals, {})();
      return FaultyFileSystem::remove_at(folder, name);
    }
    std::function<void()> before_removals;
  } sweeper;
  const TemporaryFolder folder;
  Publication publication(local_file_system(), folder / "", "one");
  write_text(local_file_system(), publication.folder() / "data.safetensors", "1");
  std::string error;
  sweeper.before_removals = [&] {
    error = user_error([&] { publication.publish(manifest_of("data.safetensors", 1), true); });
  };
  sweep(sweeper, folder / "", {});
  CHECK_THAT(error, Contains("is gone, which another program must have removed"));
  CHECK(names_in(folder / "").empty());
}

}  // namespace zerorun::testing
