#include "launcher/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace zerorun {
namespace {

/// 0 if this address family is not there.
template <typename Address>
int bind_any(int family, Address address, in_port_t Address::*port) {
  UniqueFd socket_fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.is_open()) return 0;
  int both_families = 0;
  if (family == AF_INET6) {
    setsockopt(socket_fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both_families, sizeof both_families);
  }
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (::bind(socket_fd.get(), generic, size) != 0) return 0;
  if (::getsockname(socket_fd.get(), generic, &size) != 0) return 0;
  return ntohs(address.*port);
}

}  // namespace

int find_free_port() {
  // Both families at once where there are both: the store of the rendezvous listens on both.
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_addr = in6addr_any;
  if (int port = bind_any(AF_INET6, any6, &sockaddr_in6::sin6_port)) return port;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_addr.s_addr = htonl(INADDR_ANY);
  if (int port = bind_any(AF_INET, any4, &sockaddr_in::sin_port)) return port;
  throw Error("found no free TCP port for the ranks to meet on (" + std::string(std::strerror(errno)) +
              "): give one with --master_port");
}

}  // namespace zerorun
