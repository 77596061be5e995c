#include "base/broken_pipes.h"

#include <ctime>

namespace zerorun {
namespace {

sigset_t broken_pipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

NoBrokenPipes::NoBrokenPipes() {
  const sigset_t blocked = broken_pipe();
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

// The signal of a write stays pending for this thread: without taking it, it would come now.
NoBrokenPipes::~NoBrokenPipes() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  const sigset_t blocked = broken_pipe();
  const timespec at_once{};
  sigtimedwait(&blocked, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace zerorun
