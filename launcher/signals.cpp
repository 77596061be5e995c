#include "launcher/signals.h"

#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  // If the parent process left SIGCHLD ignored, the kernel would discard the ranks' exit codes.
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGCHLD);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) sigaddset(&ours, signal);
  }
  sigprocmask(SIG_BLOCK, &ours, &mask_before_);
  fd_ = UniqueFd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) throw Error(std::string("cannot listen for signals: ") + std::strerror(errno));
}

Signals::~Signals() {
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
}

std::optional<int> Signals::next() {
  if (kept_.empty()) return read_next();
  const int signal = kept_.front();
  kept_.pop_front();
  return signal;
}

bool Signals::is_interrupted() {
  while (const std::optional<int> signal = read_next()) kept_.push_back(*signal);
  return std::ranges::any_of(kept_, [](int signal) { return signal != SIGCHLD; });
}

std::optional<int> Signals::read_next() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void Signals::restore_in_child() const {
  // The Job ends ranks with SIGTERM. So SIGTERM must work in ranks, even if the launcher was started with
  // SIGTERM ignored.
  for (int signal : {SIGPIPE, SIGTERM, SIGTSTP}) std::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace zerorun::launcher
