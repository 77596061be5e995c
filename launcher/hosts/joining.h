// A launcher that the user has started on its host (--node_rank, --rdzv_endpoint) and that joins the first
// launcher of the job, on another host: the agent of its own host (agent.h). With --max_restarts it joins
// again after a failure, until the first launcher says that the job is over. Called once, on the main thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/hosts/node_order.h"

namespace zerorun::launcher {

struct JoinPlan {
  std::vector<std::string> addresses;  // where the other launcher listens
  int port = 0;
  std::string ticket;
  AgentHello hello;
  NodeOrder order;  // all but the node's number: what this launcher's own command line says
  std::chrono::milliseconds timeout;
  bool quiet = false;
  std::string reason = {};  // why this launcher joins although it is on the endpoint's host; else empty
  int max_restarts = 0;
};

/// What this host runs in the attempt of the first launcher's order `first`: takes over only the node's
/// number, the number of restarts and the secret of the ranks after one. The ticket may be no secret
/// (docs/security.md), and the first launcher must not decide what runs here. Throws Error if `first` has
/// other values than a launcher of this job sends.
NodeOrder order_for_this_host(const JoinPlan& plan, const NodeOrder& first);

/// Runs the ranks of this host and prints their output here. Takes over the address where ranks meet from the
/// first launcher, and what order_for_this_host() says. Returns the exit code.
int join_job(const JoinPlan& plan, int argc, char** argv);

}  // namespace zerorun::launcher
