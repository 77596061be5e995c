#include "base/broken_pipes.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <thread>

namespace zerorun {
namespace {

// Writes to a connection that the other side has closed. Returns the error's number.
int write_to_closed() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
  close(ends[1]);
  const int error = write(ends[0], "x", 1) < 0 ? errno : 0;
  close(ends[0]);
  return error;
}

// The wait status of a child process that runs `body`, which returns whether all was right.
int status_of(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

bool blocks_signal() {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, SIGPIPE) == 1;
}

}  // namespace

TEST_CASE("broken pipes: a write fails without a signal, also in a thread that was started meanwhile") {
  CHECK(WTERMSIG(status_of([] { return write_to_closed() == EPIPE; })) == SIGPIPE);
  CHECK(status_of([] {
          bool failed = false;
          {
            const NoBrokenPipes no_signal;
            failed = write_to_closed() == EPIPE;
          }
          return failed && !blocks_signal();
        }) == 0);
  CHECK(status_of([] {
          std::thread other;
          {
            const NoBrokenPipes no_signal;
            other = std::thread([] {
              usleep(10'000);
              write_to_closed();
            });
          }
          other.join();
          return true;
        }) == 0);
}

TEST_CASE("broken pipes: a program that blocks the signal keeps it") {
  CHECK(status_of([] {
          sigset_t set;
          sigemptyset(&set);
          sigaddset(&set, SIGPIPE);
          pthread_sigmask(SIG_BLOCK, &set, nullptr);
          raise(SIGPIPE);
          { const NoBrokenPipes no_signal; }
          sigset_t pending;
          sigpending(&pending);
          return blocks_signal() && sigismember(&pending, SIGPIPE) == 1;
        }) == 0);
}

}  // namespace zerorun
