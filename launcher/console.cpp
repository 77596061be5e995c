#include "launcher/console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/printable.h"

namespace zerorun::launcher {
namespace {

constexpr size_t kMostPending = 1 << 20;

Display find_display() {
  struct stat out {
  }, err{};
  const bool known = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0;
  return {.out_is_terminal = ::isatty(STDOUT_FILENO) == 1,
          .err_is_terminal = ::isatty(STDERR_FILENO) == 1,
          .joined = known && out.st_dev == err.st_dev && out.st_ino == err.st_ino};
}

}  // namespace

Console::Console(const std::vector<std::string>& labels, bool quiet)
    : display_(find_display()),
      lines_(labels, display_),
      queues_{OutputQueue(STDOUT_FILENO), OutputQueue(STDERR_FILENO)},
      quiet_(quiet) {}

void Console::set_sources(const std::vector<std::string>& labels) {
  take_and_write();
  lines_ = LineMultiplexer(labels, display_);
}

void Console::feed(int source, Stream stream, std::string_view bytes) {
  lines_.feed(source, stream, bytes);
  take_and_write();
}

void Console::close(int source, Stream stream) {
  lines_.close(source, stream);
  take_and_write();
}

void Console::notice(const std::string& message) {
  lines_.notice("zerorun: " + printable(message, "\t"));
  take_and_write();
}

void Console::information(const std::string& message) {
  if (!quiet_) notice(message);
}

bool Console::takes_more(Stream stream) const {
  const Stream sink = display_.joined ? Stream::out : stream;
  return queues_[static_cast<int>(sink)].pending() < kMostPending;
}

bool Console::is_flushed() const {
  return queues_[0].pending() == 0 && queues_[1].pending() == 0;
}

void Console::append_poll_entries(std::vector<pollfd>& entries) const {
  for (const OutputQueue& queue : queues_) {
    if (queue.pending() > 0) entries.push_back({queue.fd(), POLLOUT, 0});
  }
}

void Console::write_some() {
  for (OutputQueue& queue : queues_) queue.write_some();
  const int error = queues_[0].error();
  if (error != 0 && error != EPIPE && !loss_printed_) {
    loss_printed_ = true;
    notice(std::string("cannot write to stdout (") + std::strerror(error) +
           "): what ranks print is lost from here on");
  }
}

bool Console::is_gone() const {
  return queues_[0].error() == EPIPE;
}

void Console::take_and_write() {
  for (Stream stream : kStreams) queue(stream).push(lines_.take(stream));
  write_some();
}

}  // namespace zerorun::launcher
