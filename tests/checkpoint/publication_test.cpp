// Tests that checkpoints are published, replaced, removed and refused, that nothing else is removed, and that
// jobs keep each other out. The last test makes each file system call fail in turn.
#include "checkpoint/publication.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

std::string manifest_of(const std::string& file, int64_t saving) {
  return R"({"format": "zerorun checkpoint", "saving": )" + std::to_string(saving) + R"(, "files": {")" +
         file + "\": {}}}";
}

void publish(FileSystem& files, const fs::path& directory, const std::string& tag, const std::string& text,
             bool save_latest = true, int64_t keep_last = 0) {
  Publication publication(files, directory, tag);
  write_text(files, publication.folder() / "data.safetensors", text);
  publication.publish(manifest_of("data.safetensors", publication.saving()), save_latest);
  publication.remove_old(keep_last);
}

// A checkpoint that no publication has written.
void make_checkpoint(const fs::path& folder, int64_t saving = 0) {
  fs::create_directories(folder);
  std::ofstream(folder / "data.safetensors") << "d";
  std::ofstream(folder / "manifest.json") << manifest_of("data.safetensors", saving);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// Runs `action` in another process, and returns once it has run; the process ends with the result.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void()>& action) {
    int done[2];
    if (::pipe(done) != 0 || ::pipe(until_) != 0) throw std::runtime_error("no pipe");
    process_ = ::fork();
    if (process_ == 0) {
      action();
      char byte = 1;
      const bool told = ::write(done[1], &byte, 1) == 1;
      ::close(until_[1]);
      const bool ended = ::read(until_[0], &byte, 1) == 0;
      ::_exit(told && ended ? 0 : 1);
    }
    ::close(done[1]);
    ::close(until_[0]);
    char byte = 0;
    if (::read(done[0], &byte, 1) != 1) throw std::runtime_error("the other process failed");
    ::close(done[0]);
  }
  ~OtherProcess() {
    ::close(until_[1]);
    ::waitpid(process_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  pid_t id() const { return process_; }

 private:
  pid_t process_ = -1;
  int until_[2] = {-1, -1};
};

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
  CHECK(files.list(directory) == std::vector<std::string>{"latest", "one", "two"});
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
  CHECK(Publication(files, folder / "", "a").saving() == 43);
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
  CHECK_THAT(user_error([&] { remove_tag(files, folder / "", "best"); }), Contains("best holds hf"));
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
  fs::create_directory_symlink("global_step2", out / "best");
  CHECK_THAT(user_error([&] { publish(files, out, "best", "1"); }), Contains("best is a symbolic link to"));
  CHECK_THAT(user_error([&] { remove_tag(files, out, "best"); }), Contains("best is a symbolic link to"));
  fs::create_directories(folder / "victim");
  folder.write("victim/thesis.safetensors", "precious");
  folder.write("victim/.save_id", marker_text("0123456789abcdef"));
  fs::create_directory_symlink("../victim", out / ".t.0123456789abcdef.partial");
  fs::create_directory_symlink("../victim", out / ".t.partial");
  publish(files, out, "global_step9", "9", true, 1);
  CHECK(names_in(folder / "archive/global_step1") ==
        std::set<std::string>{"data.safetensors", "manifest.json"});
  CHECK(names_in(out / "global_step2") == std::set<std::string>{"data.safetensors", "manifest.json"});
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
  publish(files, folder / "", "three", "3");
  CHECK(names_in(folder / "") ==
        std::set<std::string>{".two." + id + ".partial", ".other." + id + ".partial", "three", "latest"});
  CHECK(names_in(folder / (".two." + id + ".partial")).size() == 3);
}

TEST_CASE("Another job is refused while a job holds the folder, and the error names its process and host") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  std::shared_ptr<FolderLock> held;
  {
    const OtherProcess other([&] { held = files.lock_folder(folder / ""); });
    const std::string error = user_error([&] { publish(files, folder / "", "one", "1"); });
    CHECK_THAT(error, Contains("process " + std::to_string(other.id()) + " of host ") &&
                          Contains("saves checkpoints into this folder"));
    CHECK(published_tags(files, folder / "").empty());
  }
  publish(files, folder / "", "one", "1");  // the other process is gone without a word, and so is its lock
  CHECK(names_in(folder / "") == std::set<std::string>{"latest", "one"});
}

TEST_CASE("A child of a job that was killed does not keep the folder locked") {
  const TemporaryFolder folder;
  const pid_t job = ::fork();
  if (job == 0) {
    const auto held = local_file_system().lock_folder(folder / "");
    constexpr unsigned int kSeconds = 4;  // longer than a job waits for the lock
    if (::fork() == 0) ::sleep(kSeconds);
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(job, &status, 0);
  REQUIRE(status == 0);
  CHECK(names_in(folder / "").size() == 1);  // the lock's file
  CHECK(local_file_system().lock_folder(folder / "")->is_locked());
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("Publications of one process take turns") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < errors.size(); ++thread) {
    threads.emplace_back([&, thread] {
      errors[thread] = user_error([&] {
        for (int round = 0; round < 20; ++round)
          publish(files, folder / "", "global_step1", std::to_string(thread), true, 1);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error == "no error");
  CHECK(names_in(folder / "global_step1") == std::set<std::string>{"data.safetensors", "manifest.json"});
  CHECK(names_in(folder / "") == std::set<std::string>{"global_step1", "latest"});
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

}  // namespace zerorun::testing
