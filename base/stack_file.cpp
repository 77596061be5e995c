#include "base/stack_file.h"

#include <execinfo.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace zerorun {
namespace {

constexpr int kMostFrames = 48;

int file = -1;
int32_t* count = nullptr;

// The usual way to a stack in a handler. Neither function allocates once backtrace() has been called before.
// They may wait for the lock of the dynamic linker; the launcher does not wait for that longer than for any
// other thing.
void write_stack(int) {
  const int error = errno;
  std::array<void*, kMostFrames> frames;
  const int found = ::backtrace(frames.data(), kMostFrames);
  ::backtrace_symbols_fd(frames.data(), found, file);
  std::atomic_ref(*count).fetch_add(1, std::memory_order_release);
  errno = error;
}

}  // namespace

StackFile open_stack_file(int32_t* written) {
  // Real-time signals are for programs, which begin at SIGRTMIN.
  const int signal = SIGRTMAX - 7;
  struct sigaction present {};
  if (::sigaction(signal, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return {};
  file = ::memfd_create("zerorun stack", MFD_CLOEXEC);
  if (file < 0) return {};
  count = written;
  std::array<void*, 1> frames;
  ::backtrace(frames.data(), 1);  // loads what it needs
  struct sigaction ours {};
  ours.sa_handler = write_stack;
  ours.sa_flags = SA_RESTART;
  if (::sigaction(signal, &ours, nullptr) != 0) return {};
  return {.signal = signal, .descriptor = file};
}

}  // namespace zerorun
