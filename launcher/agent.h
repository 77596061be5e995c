// In a job on several hosts, the agent of one host: it runs the ranks of its host for the launcher. An agent
// is either the hidden command `zerorun --agent ADDRESS,... PORT [NODE]`, which ssh, pdsh, mpirun or srun
// starts, or a launcher that the user has started on its host (--node_rank, --rdzv_endpoint).
#pragma once

#include <string>
#include <vector>

#include "launcher/launch_options.h"
#include "launcher/node_order.h"

namespace zerorun::launcher {

inline constexpr char kAgentCommand[] = "--agent";
/// The environment variable with the ticket, the secret by which the launcher and its agents recognise each
/// other (handshake.h). If it is not set, the ticket is the first line on stdin.
inline constexpr char kTicketVariable[] = "ZERORUN_TICKET";
/// The environment variable with the descriptor of the socket on which the ranks meet. It is set only for the
/// agent of node 0, and only if this agent runs on the launcher's host and the launcher has opened the
/// socket.
inline constexpr char kMeetingVariable[] = "ZERORUN_MEETING_FD";

bool is_agent_command(int argc, const char* const* argv);
/// Returns the exit code.
int run_agent_command(int argc, char** argv);

/// The plan of a launcher that joins the launcher on another host.
struct JoinPlan {
  std::vector<std::string> addresses;  // where the other launcher listens
  int port = 0;
  std::string ticket;
  AgentHello hello;
  NodeOrder order;  // all but the node's number: what this launcher's own command line says
  std::chrono::milliseconds timeout;
  bool quiet = false;
  std::string reason = {};  // why this launcher joins although it is on the endpoint's host; else empty
};

/// Runs the ranks of this host and prints their output here. Takes over only the node's number and the
/// address where ranks meet from the other launcher: its ticket may be no secret (docs/security.md), and it
/// must not decide what runs here. Returns the exit code.
int join_job(const JoinPlan& plan, int argc, char** argv);

}  // namespace zerorun::launcher
