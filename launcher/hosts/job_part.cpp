#include "launcher/hosts/job_part.h"

#include <iterator>
#include <string>

#include "base/error.h"
#include "base/route.h"

namespace zerorun::launcher {
namespace {

bool is_own_address(const std::string& address) {
  try {
    const Route route = route_to(address);
    return is_loopback(route.remote) || route.local == route.remote;
  } catch (const CommError&) {
    return false;  // another host's name, which may become known while this launcher tries to join
  }
}

}  // namespace

Endpoint choose_endpoint(const LaunchOptions& options, const Placement& placement) {
  if (!options.rdzv_endpoint.empty()) return parse_endpoint(options.rdzv_endpoint);
  std::string host = options.master_addr;
  if (host.empty() && !options.hostfile.empty()) {
    host = placement.nodes().front().host;
    host = host.substr(host.find('@') + 1);  // without the user's name; npos + 1 is 0
    if (is_loopback(host) && placement.nodes().size() > 1) host.clear();
  }
  if (host.empty() && placement.nodes().size() == 1) host = kThisHost;
  if (host.empty()) {
    throw UserError("give the address of rank 0's host, which the other hosts connect to: --master_addr");
  }
  return {host, options.master_port.value_or(kDefaultPort)};
}

Part choose_part(const LaunchOptions& options, const JobPlacement& place, const Endpoint& endpoint) {
  const size_t nodes = place.placement.nodes().size();
  if (!options.rdzv_endpoint.empty() || (options.node_rank && nodes > 1)) {
    const bool first = options.node_rank ? *options.node_rank == 0 : is_own_address(endpoint.address);
    return first ? Part::first : Part::joins;
  }
  const bool here = nodes == 1 && place.node.has_value();
  const bool starts = options.force_multi || !here;
  return starts ? Part::starts : Part::alone;
}

void check_restarts(const LaunchOptions& options, Part part, int nodes) {
  const auto refuse = [](const std::string& option, int value, const std::string& why) {
    throw UserError(option + " " + std::to_string(value) + ": " + why + " (docs/restarts.md)");
  };
  const bool by_ssh =
      part == Part::starts && (options.starter == Starter::ssh || options.starter == Starter::pdsh);
  if (options.hold_every > 0 && part != Part::alone && !by_ssh) {
    refuse("--hold_every", options.hold_every,
           part == Part::starts
               ? "a step of mpirun or srun ends with all of its processes, also those that hold the memory: "
                 "give --launcher ssh or pdsh, or leave it out, and ranks go on from the newest checkpoint"
               : "only hosts whose agents this launcher starts (--hostfile) go on from memory: leave it out");
  }
  if (options.min_nodes > 0 && (part != Part::starts || options.starter != Starter::ssh)) {
    refuse("--min_nodes", options.min_nodes,
           "only where ssh starts each host by itself can one be left out: give a --hostfile and no other "
           "--launcher, or leave it out");
  }
  if (options.min_nodes > nodes) {
    refuse("--min_nodes", options.min_nodes,
           "the job has only " + std::to_string(nodes) + (nodes == 1 ? " host" : " hosts") + ": give fewer");
  }
}

}  // namespace zerorun::launcher
