#include "base/route.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/unique_fd.h"

namespace zerorun {
namespace {

// Connecting a datagram socket chooses the route and sends nothing.
Route route_by(const addrinfo& target) {
  const UniqueFd socket(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open() || ::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0) return {};
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) return {};
  return {numeric_address(reinterpret_cast<sockaddr*>(&local), size),
          numeric_address(target.ai_addr, target.ai_addrlen)};
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::string numeric_address(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string numeric = text.data();
  constexpr std::string_view kMapped = "::ffff:";  // prefix of an IPv4 address on a dual-stack socket
  return numeric.starts_with(kMapped) ? numeric.substr(kMapped.size()) : numeric;
}

Route route_to(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port does not matter for the route, but 0 is refused by some systems.
  const int error = getaddrinfo(address.c_str(), "9", &hints, &found);
  if (error != 0) {
    throw CommError("the address of " + address + " (MASTER_ADDR) cannot be found: " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const addrinfo* one = all.get(); one != nullptr; one = one->ai_next) {
    Route route = route_by(*one);
    if (!route.local.empty()) return route;
  }
  throw CommError("no network interface leads to " + address + " (MASTER_ADDR): " + std::strerror(errno));
}

std::string reachable_address(const std::vector<Route>& routes, int rank) {
  const Route& own = routes[rank];
  if (!is_loopback(own.local)) return own.local;
  for (const Route& other : routes) {
    if (!is_loopback(other.local)) return other.remote;
  }
  return own.local;  // all ranks are on one host
}

}  // namespace zerorun
