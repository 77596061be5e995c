// Tests that no process outlives a job, neither after its normal end nor after a SIGKILL of the launcher.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "launcher/guardian.h"
#include "tests/launcher/launched.h"

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

TEST_CASE("orphans of a rank are collected while the job goes on") {
  Launched job(
      {.script = "(sleep 0.1 &); sleep 0.5; : >$DIR/now; while [ ! -e $DIR/go ]; do sleep 0.02; done"});
  job.wait_for_file("now");
  CHECK(zerorun::testing::count_zombies(job.pid()) == 0);
  job.create_file("go");
  CHECK(job.finish().exit_code == 0);
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
