// Tests that jobs keep each other out of a folder of checkpoints, on file systems with and without locks.
#include "checkpoint/folder_lock.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <set>
#include <thread>

#include "checkpoint/publication.h"
#include "tests/checkpoint/publish.h"
#include "tests/support/temporary_folder.h"

namespace {

int flock_error = 0;  // 0: flock() works

}  // namespace

// Takes the place of the system's function.
extern "C" int flock(int file, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = flock_error;
  return -1;
}

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct FlockFails {
  explicit FlockFails(int error) { flock_error = error; }
  ~FlockFails() { flock_error = 0; }
};

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

// Makes this process one that may not write what the superuser has made.
class OtherUser {
 public:
  OtherUser() {
    constexpr uid_t kNobody = 65534;
    if (own_ == 0 && ::seteuid(kNobody) != 0) throw std::runtime_error("no other user");
  }
  ~OtherUser() { [[maybe_unused]] const int done = ::seteuid(own_); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

 private:
  uid_t own_ = ::geteuid();
};

std::string lock_error(const fs::path& folder) {
  return user_error([&] { lock_local_folder(folder); });
}

}  // namespace

TEST_CASE("Another job is refused while a job holds the folder, and the error says who holds it") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const fs::path lock_file = folder / kLockName;
  std::shared_ptr<FolderLock> held;
  {
    const OtherProcess other([&] { held = files.lock_folder(folder / ""); });
    const std::string error = user_error([&] { publish(files, folder / "", "one", "1"); });
    CHECK_THAT(error, Contains("process " + std::to_string(other.id()) + " of host " + host_name()) &&
                          Contains("saves checkpoints into this folder") &&
                          Contains("if that host is down, remove " + lock_file.string()));
    CHECK(published_tags(files, folder / "").empty());
  }
  publish(files, folder / "", "one", "1");  // the other process is gone without a word, and so is its lock
  CHECK(names_in(folder / "") == std::set<std::string>{"latest", "one"});
  CHECK(fs::exists(lock_file));
  CHECK(read_file(lock_file) == "");
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
  CHECK_THAT(read_file(folder / kLockName), Contains("process " + std::to_string(job)));
  CHECK(local_file_system().lock_folder(folder / "")->is_locked());
}

TEST_CASE("Publications of one process take turns, with and without locks") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const FlockFails fails(GENERATE(0, ENOLCK));
  const auto lock = files.lock_folder(folder / "");
  CHECK(lock == files.lock_folder(folder / "."));
  CHECK(lock->is_locked() == (flock_error == 0));
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

TEST_CASE("A failing lock service takes no job's lock away") {
  const TemporaryFolder folder;
  const fs::path lock_file = folder / kLockName;
  const OtherProcess other([&] {
    static std::shared_ptr<FolderLock> held;
    held = lock_local_folder(folder / "");
  });
  const std::string text = read_file(lock_file);
  CHECK_THAT(text, Contains("process " + std::to_string(other.id())));
  {
    const FlockFails fails(ENOLCK);
    CHECK_FALSE(lock_local_folder(folder / "")->is_locked());
  }
  CHECK(read_file(lock_file) == text);
  CHECK_THAT(lock_error(folder / ""), Contains("saves checkpoints into this folder"));
}

TEST_CASE("A lock file that another user has made is locked as it is, or the error names it") {
  const TemporaryFolder folder;
  ::chmod((folder / "").c_str(), 0777);
  const fs::path lock_file = folder.write(kLockName, "");
  ::chmod(lock_file.c_str(), 0444);
  const OtherUser other;
  CHECK(lock_local_folder(folder / "")->is_locked());
  CHECK(fs::exists(lock_file));
  const FlockFails fails(EBADF);  // as on NFS
  CHECK_THAT(lock_error(folder / ""), Contains(lock_file.string() + " was made by another user") &&
                                          Contains("remove it, or let the group write it"));
  CHECK(fs::exists(lock_file));
}

TEST_CASE("In a folder that this user may not write, the error says so") {
  const TemporaryFolder folder;
  ::chmod((folder / "").c_str(), 0555);
  const OtherUser other;
  CHECK_THAT(lock_error(folder / ""),
             Contains(".zerorun-lock cannot be made: Permission denied: save where this user may write"));
}

TEST_CASE("If the lock's file is removed during a save, nothing is published, and the next save succeeds") {
  const TemporaryFolder folder;
  FileSystem& files = local_file_system();
  const auto held = files.lock_folder(folder / "");
  {
    Publication publication(files, folder / "", "one");
    write_text(files, publication.folder() / "data.safetensors", "1");
    fs::remove(folder / kLockName);
    CHECK_THAT(user_error([&] { publication.publish(manifest_of("data.safetensors", 1), true); }),
               Contains(".zerorun-lock has been removed during the save"));
  }
  CHECK(names_in(folder / "").empty());
  publish(files, folder / "", "one", "1");
  CHECK(published_tags(files, folder / "") == std::vector<std::string>{"one"});
}

}  // namespace zerorun::testing
