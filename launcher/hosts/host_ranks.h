// The ranks of one host in a job on several hosts. The host's agent (agent.h), or the launcher that has
// joined the job (joining.h), runs them for the launcher at the other end of the link. Used on the main
// thread.
#pragma once

#include <chrono>
#include <functional>

#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/node_order.h"
#include "launcher/job_output.h"

namespace zerorun::launcher {

/// How the ranks of a host have ended.
struct HostRun {
  NodeResult result;
  bool has_started = false;      // false: the ranks have not run
  bool ended_by_others = false;  // without a fault of this host's
  bool is_unwanted = false;      // as Job::is_unwanted()
};

/// Runs the ranks of `order`. Prints their output on `console`, or sends it to the launcher if that is null.
/// `deadline`: until the ranks start. Throws UserError or Error.
HostRun run_ranks(AgentLink& link, const NodeOrder& order, JobOutput* console,
                  AgentLink::Clock::time_point deadline, int argc, char** argv);

/// Calls `run`. Sends an error of this host to the launcher, which reports it. Also reports it on `console`,
/// if there is one.
HostRun or_trouble(AgentLink& link, JobOutput* console, const std::function<HostRun()>& run);

}  // namespace zerorun::launcher
