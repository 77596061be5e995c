// The address by which other hosts reach this one. Resolving the host's own name does not find it: Debian
// resolves that name to 127.0.1.1, and many containers cannot resolve it. Instead the local end of the route
// to MASTER_ADDR is used, because every rank can reach MASTER_ADDR. Any thread.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace zerorun {

/// The two ends of the connection from this host to another one, as numeric addresses.
struct Route {
  std::string local;
  std::string remote;

  bool operator==(const Route&) const = default;
};

/// Whether `address` (numeric, or "localhost") leads to the host that uses it.
bool is_loopback(const std::string& address);

/// `address` as numeric text, without a port. Empty if it cannot be converted.
std::string numeric_address(const sockaddr* address, socklen_t size);

/// The route to `address`, a host name or address. Sends nothing; asks the name service if `address` is a
/// name. Throws CommError if the name is unknown or no interface leads to the address.
Route route_to(const std::string& address);

/// The address by which ranks on other hosts reach rank `rank`. `routes` has each rank's route to
/// MASTER_ADDR. The result is the local end of the rank's route. If that is a loopback address, the rank is
/// on MASTER_ADDR's own host, and the result is the address that other hosts use for MASTER_ADDR. Pure.
std::string reachable_address(const std::vector<Route>& routes, int rank);

}  // namespace zerorun
