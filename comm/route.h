// The address by which other hosts reach this one. A host's own name is no guide: Debian resolves it to
// 127.0.1.1, and a container often not at all. The route to MASTER_ADDR, which every rank can reach, is. Any
// thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The two ends of the connection from this host to another one, as numeric addresses.
struct Route {
  std::string local;
  std::string remote;

  bool operator==(const Route&) const = default;
};

/// Whether `address` is one by which a host reaches only itself. Pure.
bool is_loopback(const std::string& address);

/// The route to `address`, a host name or address. Sends nothing; asks the name service if `address` is a
/// name. Throws CommError if the name is unknown or no interface leads to the address.
Route route_to(const std::string& address);

/// The address by which the ranks of other hosts reach rank `rank`, from all ranks' routes to MASTER_ADDR:
/// its local end. On MASTER_ADDR's own host that may be a loopback address; then the address that other hosts
/// use for MASTER_ADDR. Pure.
std::string reachable_address(const std::vector<Route>& routes, int rank);

}  // namespace zerorun
