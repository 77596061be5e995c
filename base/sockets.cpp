#include "base/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace zerorun {

bool wait_for_socket(int fd, short events, SocketClock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SocketClock::now()).count();
    pollfd entry = {fd, events, 0};
    const int ready = left > 0 ? ::poll(&entry, 1, static_cast<int>(left)) : 0;
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

bool send_few(int fd, std::string_view bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::optional<std::string> receive(int fd, size_t size, SocketClock::time_point deadline) {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    if (!wait_for_socket(fd, POLLIN, deadline)) return std::nullopt;
    const ssize_t more = ::recv(fd, bytes.data() + done, size - done, 0);
    if (more < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (more <= 0) return std::nullopt;
    done += static_cast<size_t>(more);
  }
  return bytes;
}

int connect_socket(UniqueFd& fd, const addrinfo& address, SocketClock::time_point deadline) {
  fd = UniqueFd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return errno;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for_socket(fd.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

void watch_other_end(int fd) {
  constexpr int kYes = 1, kIdleSeconds = 20, kSecondsBetween = 5, kProbes = 3;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &kYes, sizeof kYes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kSecondsBetween, sizeof kSecondsBetween);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

}  // namespace zerorun
