#include "launcher/hosts/agent.h"

#include <poll.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/host_ranks.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/keeper.h"
#include "launcher/machine.h"

namespace zerorun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// The launcher listens before it starts agents. So an agent that has not reached it after this time gives up.
constexpr std::chrono::seconds kAgentPatience(20);

int number_of(const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw UserError(std::string("zerorun ") + kAgentCommand + ": '" + text + "' is not a number");
  }
  return value;
}

std::string read_ticket() {
  std::string ticket = variable(kTicketVariable);
  if (ticket.empty()) std::getline(std::cin, ticket);
  ::unsetenv(kTicketVariable);
  if (ticket.empty()) throw UserError(std::string("zerorun ") + kAgentCommand + ": no ticket on stdin");
  return ticket;
}

// The number of this agent's node if mpirun has started the agent, else -1. For agents that srun has started,
// the launcher finds the node by the host's name.
int number_by_starter() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const std::string text = variable(name); !text.empty() && variable("SLURMD_NODENAME").empty()) {
      return number_of(text);
    }
  }
  return -1;
}

// The addresses that the launcher passed, followed by the launcher's address as sshd saw it. The launcher
// does not always know that last address: if only ssh's configuration knows the name of this host, the
// launcher cannot look up its route to this host.
std::vector<std::string> launcher_addresses(const std::string& given) {
  std::vector<std::string> addresses = split_list(given);
  const std::string connection = variable("SSH_CONNECTION");
  const std::string client = connection.substr(0, connection.find(' '));
  if (!client.empty()) addresses.push_back(client);
  return addresses;
}

// False once the process that started this agent, such as ssh, has ended: then nobody reads the agent's
// output.
bool is_output_read() {
  pollfd entry = {STDOUT_FILENO, 0, 0};
  return ::poll(&entry, 1, 0) == 0;
}

}  // namespace

bool is_agent_command(int argc, const char* const* argv) {
  return argc > 1 && std::string(argv[1]) == kAgentCommand;
}

int run_agent_command(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    throw UserError(std::string("zerorun ") + kAgentCommand +
                    " is internal: zerorun itself runs it on each host of a job");
  }
  std::signal(SIGPIPE, SIG_IGN);  // a write to ssh's closed pipe must not end the agent before its ranks
  const std::string ticket_text = read_ticket();
  const Seal ticket(ticket_text);
  const int node = argc == 5 ? number_of(argv[4]) : number_by_starter();
  const std::string slurm_name = variable("SLURMD_NODENAME");
  const auto deadline = Clock::now() + kAgentPatience;
  const std::vector<std::string> addresses = launcher_addresses(argv[2]);
  AgentLink link(
      FrameSocket(connect_to_launcher(addresses, number_of(argv[3]), ticket, deadline, is_output_read)));
  link.send(FrameType::hello,
            encode(AgentHello{ZERORUN_VERSION, node, slurm_name.empty() ? this_hostname() : slurm_name, ""}));
  // No deadline here: after --timeout the launcher gives up and closes the connection.
  const auto no_deadline = Clock::time_point::max();
  const auto order =
      decode<NodeOrder>(link.wait_for(FrameType::order, no_deadline, "the order for this host"));
  const HostRun run = or_trouble(link, nullptr, [&] {
    if (order.keeper.port > 0)
      link.send(FrameType::keeper, provide_keeper(order, addresses, [&] { link.keep_alive(); }));
    return run_ranks(link, order, nullptr, no_deadline, argc, argv);
  });
  link.finish(run.result);
  // Returns 0 even if ranks failed, because the launcher has the result, and 1 only if the launcher is lost.
  // After an exit code other than 0 mpirun would end the agents of other hosts.
  return link.is_lost() ? 1 : 0;
}

}  // namespace zerorun::launcher
