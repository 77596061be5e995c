// Tests that no process outlives a job, neither after its normal end nor after a SIGKILL of the launcher.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "launcher/guardian.h"
#include "tests/launcher/launched.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::Process;
using zerorun::testing::Result;
using namespace zerorun::launcher;

namespace {

// Each rank has a child and a grandchild; all ignore SIGTERM.
const std::string kFamily = "trap '' TERM; (sleep 300 & sleep 300) & sleep 300 & echo up $RANK; wait";

void start_family(Launched& job) {
  job.wait_for_output("up 0");
  job.wait_for_output("up 1");
}

// From now on this process's call of the system function `number` fails with EPERM.
void forbid(uint32_t number) {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {std::size(rules), rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(98);
}

pid_t find_guardian(const Launched& job) {
  for (const Process& process : job.processes()) {
    if (process.name == "zr-guardian") return process.pid;
  }
  return -1;
}

}  // namespace

TEST_CASE("a SIGKILL of the launcher leaves nothing alive, grandchildren included") {
  Launched job({.options = {"--num_gpus", "2"}, .script = kFamily});
  start_family(job);
  CHECK(job.processes().size() >= 7);
  job.signal(SIGKILL);
  CHECK(job.finish().exit_code == -1);
  job.wait_until_nothing_is_left();
}

TEST_CASE("the guardian blocks signals, and has a session and a name of its own") {
  Launched job({.options = {"--num_gpus", "2"}, .script = kFamily});
  start_family(job);
  const pid_t guardian = find_guardian(job);
  REQUIRE(guardian > 0);
  CHECK(::getsid(guardian) == guardian);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) ::kill(guardian, signal);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(zerorun::testing::is_alive(guardian));
  job.signal(SIGKILL);
  job.finish();
  job.wait_until_nothing_is_left();
}

TEST_CASE("a job whose guardian was killed still ends with success") {
  Launched job({.options = {"--num_gpus", "2"},
                .script = "echo up $RANK; while [ ! -e $DIR/go ]; do sleep 0.02; done"});
  start_family(job);
  const pid_t guardian = find_guardian(job);
  REQUIRE(guardian > 0);
  ::kill(guardian, SIGKILL);
  job.create_file("go");
  CHECK(job.finish().exit_code == 0);
  job.wait_until_nothing_is_left();
}

TEST_CASE("ranks that are stopped do not outlive the launcher either") {
  Launched job({.options = {"--num_gpus", "2"}, .script = "sleep 300 & echo up $RANK; kill -STOP 0"});
  start_family(job);
  job.signal(SIGKILL);
  job.finish();
  job.wait_until_nothing_is_left();
}

TEST_CASE("processes that a rank leaves behind are ended with the job") {
  Launched polite({.options = {"--num_gpus", "2"}, .script = "sleep 300 & echo up $RANK"});
  Result result = polite.finish(5);
  CHECK(result.exit_code == 0);
  polite.wait_until_nothing_is_left();

  Launched deaf(
      {.options = {"--num_gpus", "2", "--grace", "0.3"}, .script = "trap '' TERM; sleep 300 & exit 0"});
  CHECK(deaf.finish(5).exit_code == 0);
  deaf.wait_until_nothing_is_left();
}

TEST_CASE("processes that have left the ranks' session end with the job too, whether it fails or not") {
  for (const int code : {0, 3}) {
    CAPTURE(code);
    Launched job(
        {.options = {"--num_gpus", "2"},
         .script = "setsid sh -c 'sleep 300 & sleep 300' & sleep 0.2; exit " + std::to_string(code)});
    CHECK(job.finish(8).exit_code == code);
    job.wait_until_nothing_is_left();
  }
  Launched deaf({.options = {"--grace", "0.3"},
                 .script = "setsid sh -c 'trap \"\" TERM; sleep 300 & wait' & sleep 0.2"});
  CHECK(deaf.finish(8).exit_code == 0);
  deaf.wait_until_nothing_is_left();
}

TEST_CASE("a process that becomes an orphan while the job ends gets SIGTERM too") {
  Launched job({.options = {"--grace", "15"},
                .script = "setsid sh -c 'sh -c \"trap \\\": >$DIR/got; exit\\\" TERM; : >$DIR/up; "
                          "while :; do sleep 0.05; done\" & wait' & "
                          "while [ ! -e $DIR/up ]; do sleep 0.02; done"});
  const Result result = job.finish(8);
  CHECK(result.exit_code == 0);
  CHECK(::access((job.folder() + "/got").c_str(), F_OK) == 0);
  CHECK_THAT(result.err, Contains("1 process that a rank has left behind is ended with the job"));
}

TEST_CASE("a launcher of several hosts leaves alone what ran before it, and ends what its agent leaves") {
  const zerorun::testing::TemporaryFolder folder;
  const std::string hosts = folder.write("hosts", "localhost slots=1\n");
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    const pid_t before = ::fork();
    if (before == 0) ::execl("/bin/sleep", "sleep", "60", nullptr);
    std::ofstream(folder / "before") << before;
    ::execl(ZERORUN_BINARY_DIR "/bin/zerorun", "zerorun", "--hostfile", hosts.c_str(), "--force_multi",
            "/bin/true", nullptr);
    _exit(99);
  }
  int status = -1;
  REQUIRE(::waitpid(launcher, &status, 0) == launcher);
  CHECK(status == 0);
  pid_t before = -1;
  std::ifstream(folder / "before") >> before;
  REQUIRE(before > 0);
  CHECK(zerorun::testing::is_alive(before));
  ::kill(before, SIGKILL);

  Launched job({.options = {"--hostfile", hosts, "--force_multi"},
                .script = "setsid sh -c 'trap \"\" TERM; : >$DIR/up; while :; do sleep 0.1; done' & wait"});
  job.wait_for_file("up");
  for (const Process& process : job.processes()) {
    if (process.name == "zerorun" && process.parent == job.pid()) ::kill(process.pid, SIGKILL);
  }
  CHECK(job.finish(15).exit_code == 1);
  job.wait_until_nothing_is_left();
}

TEST_CASE("orphans of a rank are collected while the job goes on") {
  Launched job(
      {.script = "(sleep 0.1 &); sleep 0.5; : >$DIR/now; while [ ! -e $DIR/go ]; do sleep 0.02; done"});
  job.wait_for_file("now");
  CHECK(zerorun::testing::count_zombies(job.pid()) == 0);
  job.create_file("go");
  CHECK(job.finish().exit_code == 0);
}

TEST_CASE("the guardian keeps nothing of the launcher's open, also where the system forbids close_range()") {
  for (const bool forbidden : {false, true}) {
    CAPTURE(forbidden);
    const pid_t launcher = ::fork();
    REQUIRE(launcher >= 0);
    if (launcher == 0) {
      if (forbidden) forbid(__NR_close_range);
      for (int i = 0; i < 20; ++i) {
        if (::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) _exit(99);
      }
      long left = -1;
      {
        const Guardian guardian(0, nullptr);
        const std::string folder = "/proc/" + std::to_string(guardian.pid()) + "/fd";
        for (int i = 0; i < 500 && left != 4; ++i) {  // stdin, stdout, stderr and the pipe
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          const std::filesystem::directory_iterator open(folder);
          left = std::distance(begin(open), end(open));
        }
      }
      _exit(left == 4 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(launcher, &status, 0) == launcher);
    CHECK(status == 0);
  }
}

TEST_CASE("the guardian does not kill a process group that it was told to forget") {
  int announced[2];
  REQUIRE(::pipe(announced) == 0);
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    Guardian guardian(0, nullptr);
    pid_t children[2];
    for (pid_t& child : children) {
      child = ::fork();
      if (child != 0) continue;
      ::setpgid(0, 0);
      guardian.guard_own_group();
      ::execl("/bin/sleep", "sleep", "60", nullptr);  // closes the pipe to the guardian
      _exit(99);
    }
    // The guardian must get the children's messages before the message of forget(). The delay gives each
    // child the time to send its message and to become a `sleep`.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    guardian.forget(children[1]);
    if (::write(announced[1], children, sizeof children) != sizeof children) _exit(99);
    ::kill(::getpid(), SIGKILL);
  }
  pid_t children[2] = {-1, -1};
  REQUIRE(::read(announced[0], children, sizeof children) == sizeof children);
  ::waitpid(launcher, nullptr, 0);
  for (int i = 0; i < 500 && zerorun::testing::is_alive(children[0]); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK_FALSE(zerorun::testing::is_alive(children[0]));
  CHECK(zerorun::testing::is_alive(children[1]));
  ::kill(children[1], SIGKILL);
  for (int fd : announced) ::close(fd);
}
