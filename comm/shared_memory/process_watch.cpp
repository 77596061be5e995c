#include "comm/shared_memory/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace zerorun {

void ProcessWatch::add(pid_t pid) {
  const bool own = first_ + static_cast<int>(processes_.size()) == rank_;
  processes_.push_back(pid);
  // Uses syscall(), because glibc 2.36 does not declare pidfd_open() for C++.
  descriptors_.emplace_back(own ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!own && !descriptors_.back().is_open()) {
    throw Error("process " + std::to_string(pid) +
                " cannot be watched (pidfd_open): " + std::strerror(errno));
  }
}

std::vector<int> ProcessWatch::ended() const {
  std::vector<int> ranks;
  std::vector<pollfd> polled;  // this rank's entry is -1, which poll() skips
  for (const UniqueFd& descriptor : descriptors_) {
    polled.push_back({.fd = descriptor.get(), .events = POLLIN, .revents = 0});
  }
  if (poll(polled.data(), polled.size(), 0) <= 0) return ranks;
  for (size_t rank = 0; rank < polled.size(); ++rank) {
    if (polled[rank].revents != 0) ranks.push_back(first_ + static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace zerorun
