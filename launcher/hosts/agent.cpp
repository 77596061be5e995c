#include "launcher/hosts/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "base/error.h"
#include "base/listening.h"
#include "base/printable.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/gpu_question.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/keeper.h"
#include "launcher/hosts/node_job.h"
#include "launcher/machine.h"
#include "launcher/rank_labels.h"
#include "launcher/signals.h"

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

ListeningSocket open_port(const NodeOrder& order) {
  // Not taken if the variable is left over from another process.
  UniqueFd inherited = take_inherited_socket(*order.port, kMeetingVariable);
  if (inherited.is_open()) return {std::move(inherited), *order.port, {}};
  return open_meeting_point("", *order.port, false);
}

// Runs the ranks of `order`. Prints their output on `console`, or sends it to the launcher if that is null.
NodeResult run_ranks(AgentLink& link, const NodeOrder& order, JobOutput* console, Clock::time_point deadline,
                     int argc, char** argv) {
  const int first_rank = Placement(order.nodes).first_rank(order.node);
  const ThisMachine machine = inspect_machine(order.device);
  check_gpus(order, machine, inherited_by_ranks(order), [&] { link.keep_alive(); });
  ListeningSocket listening;
  if (order.port) {
    link.wait_for(FrameType::open, deadline, "word that all hosts have connected");
    listening = open_port(order);
    link.send(FrameType::port, encode(MeetingPoint{"", listening.port}));
  }
  auto point =
      decode<MeetingPoint>(link.wait_for(FrameType::start, deadline, "the address where ranks meet"));
  if (order.keeper.port == 0) point.held_memory.clear();  // not meant for a launcher that joins
  JobPlan plan = plan_node(order, point, machine, std::move(listening.fd));

  plan.reports_failure = console != nullptr;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of ranks become children of this process
  Signals signals;
  Guardian guardian(argc, argv, console != nullptr ? Guarded::launcher : Guarded::agent);
  LinkOutput remote(link, first_rank);
  JobOutput& output = console != nullptr ? *console : static_cast<JobOutput&>(remote);
  Job job(std::move(plan), output, signals, guardian, &link);
  const int exit_code = job.run();
  const bool ended_by_others = exit_code == 0 && job.was_told_to_end();
  if (ended_by_others && console != nullptr) {
    console->notice(
        "the job has ended because of a failure on another host, which the first launcher reports");
    console->write_some();
  }
  return {ended_by_others ? 1 : exit_code, job.interrupted_by().value_or(0)};
}

// A name may become known late, when a scheduler starts the first launcher's host.
UniqueFd connect_to_first(const JoinPlan& plan, const Seal& ticket, Clock::time_point deadline) {
  const std::string reason = plan.reason.empty() ? "" : "; this launcher joins because it " + plan.reason;
  const auto tell = [&](const std::string& problem) {
    const auto left = std::chrono::duration_cast<std::chrono::seconds>(deadline - Clock::now()).count();
    const std::string text =
        problem + reason + "; this launcher tries again for " + std::to_string(left) + " s (--timeout)";
    std::fprintf(stderr, "zerorun: %s\n", printable(text).c_str());
  };
  try {
    return connect_to_launcher(
        plan.addresses, plan.port, ticket, deadline, [] { return true; }, tell);
  } catch (const Error& error) {
    throw Error(error.what() + reason);
  }
}

// Sends an error of this host to the launcher, which reports it. Also reports it on `console`, if there is
// one.
template <typename Run>
NodeResult or_trouble(AgentLink& link, JobOutput* console, Run run) {
  AgentTrouble trouble;
  try {
    return run();
  } catch (const UserError& error) {
    trouble = {error.what(), true};
  } catch (const std::exception& error) {
    trouble = {error.what(), false};
  }
  link.send(FrameType::trouble, encode(trouble));
  if (console != nullptr) console->notice(trouble.message);
  return {trouble.user_mistake ? 2 : 1, 0};
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
  const NodeResult result = or_trouble(link, nullptr, [&] {
    if (order.keeper.port > 0)
      link.send(FrameType::keeper, provide_keeper(order, addresses, [&] { link.keep_alive(); }));
    return run_ranks(link, order, nullptr, no_deadline, argc, argv);
  });
  link.finish(result);
  // Returns 0 even if ranks failed, because the launcher has the result, and 1 only if the launcher is lost.
  // After an exit code other than 0 mpirun would end the agents of other hosts.
  return link.is_lost() ? 1 : 0;
}

int join_job(const JoinPlan& plan, int argc, char** argv) {
  const auto deadline = Clock::now() + plan.timeout;
  const Seal ticket(plan.ticket);
  AgentLink link(FrameSocket(connect_to_first(plan, ticket, deadline)));
  link.send(FrameType::hello, encode(plan.hello));
  NodeOrder order = plan.order;
  order.node = decode<NodeOrder>(link.wait_for(FrameType::order, deadline, "the order for this host")).node;
  // Node 0 is the first launcher itself.
  const bool numbered = plan.hello.node >= 0;
  const int lowest = numbered ? plan.hello.node : 1;
  const int highest = numbered ? plan.hello.node : static_cast<int>(order.nodes.size()) - 1;
  if (order.node < lowest || order.node > highest) {
    throw Error("the launcher of node 0 sent the number " + std::to_string(order.node) +
                " for this node: expected " + std::to_string(lowest) +
                (numbered ? ", that of --node_rank" : " to " + std::to_string(highest)));
  }
  Console console(rank_labels(order.nodes, order.node), plan.quiet);
  const NodeResult result =
      or_trouble(link, &console, [&] { return run_ranks(link, order, &console, deadline, argc, argv); });
  link.finish(result);
  if (link.is_lost()) return 1;
  return result.interrupted_by != 0 ? 128 + result.interrupted_by : result.exit_code;
}

}  // namespace zerorun::launcher
