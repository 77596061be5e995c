#include "launcher/output_queue.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace zerorun::launcher {
namespace {

/// Other processes (the user's shell) share the descriptor's flags, so O_NONBLOCK must not be set on `fd`.
/// Instead, a terminal or a pipe is opened again. A regular file is not opened again: it never blocks for
/// long, and the new descriptor would start at position 0.
UniqueFd reopen_non_blocking(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || ::isatty(fd))) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

bool writable_now(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

OutputQueue::OutputQueue(int fd) : own_(reopen_non_blocking(fd)), fd_(fd) {}

void OutputQueue::push(std::string_view bytes) {
  if (error_ == 0) bytes_.append(bytes);
}

void OutputQueue::write_some() {
  // A pipe that polls as writable takes PIPE_BUF bytes without blocking, even if reopen_non_blocking() has
  // failed.
  while (pending() > 0 && writable_now(fd())) {
    const ssize_t size = ::write(fd(), bytes_.data() + written_, std::min<size_t>(pending(), PIPE_BUF));
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      error_ = errno;
      written_ = bytes_.size();
      break;
    }
    written_ += size;
  }
  if (pending() == 0) {
    bytes_.clear();
    written_ = 0;
  }
}

}  // namespace zerorun::launcher
