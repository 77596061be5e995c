// The agent of one host in a job on several: runs the host's ranks for the launcher. It is the hidden command
// `zerorun --agent ADDRESS,... PORT [NODE]`, which ssh, pdsh, mpirun or srun start, or the launcher that a
// user has started on each host (--node_rank, --rdzv_endpoint).
#pragma once

#include <string>
#include <vector>

#include "launcher/launch_options.h"
#include "launcher/node_order.h"

namespace zerorun {

inline constexpr char kAgentCommand[] = "--agent";
/// The environment variable with the ticket that an agent shows to the launcher; without it the ticket is the
/// first line on stdin.
inline constexpr char kTicketVariable[] = "ZERORUN_TICKET";
/// The environment variable with the descriptor of a socket that listens where the ranks meet, for the agent
/// of node 0 on the launcher's own host.
inline constexpr char kMeetingVariable[] = "ZERORUN_MEETING_FD";

bool is_agent_command(int argc, const char* const* argv);
/// Returns the exit code.
int run_agent_command(int argc, char** argv);

/// What a launcher that joins the launcher on another host brings.
struct JoinPlan {
  std::vector<std::string> addresses;  // where that one listens
  int port = 0;
  std::string ticket;
  AgentHello hello;
  // This host's own, whatever the other launcher's order says:
  std::vector<std::string> arguments;
  LogOptions logs;
  std::chrono::milliseconds grace, failure_grace, timeout;
  bool quiet = false;
};

/// Runs the ranks of this host, whose output is printed here. Returns the exit code.
int join_job(const JoinPlan& plan, int argc, char** argv);

}  // namespace zerorun
