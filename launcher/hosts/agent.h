// In a job on several hosts, the agent of one host: it runs the ranks of its host for the launcher
// (host_ranks.h). An agent is either the hidden command `zerorun --agent ADDRESS,... PORT [NODE]`, which ssh,
// pdsh, mpirun or srun starts, or a launcher that the user has started on its host (joining.h).
#pragma once

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

}  // namespace zerorun::launcher
