#include "launcher/hosts/remote_start.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "launcher/hosts/agent.h"
#include "launcher/hosts/dry_run.h"

namespace zerorun::launcher {
namespace {

constexpr std::array<std::pair<const char*, Starter>, 5> kStarters = {{{"ssh", Starter::ssh},
                                                                       {"pdsh", Starter::pdsh},
                                                                       {"openmpi", Starter::openmpi},
                                                                       {"mpich", Starter::mpich},
                                                                       {"slurm", Starter::slurm}}};

std::string join_words(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::vector<std::string> agent_arguments(const StartPlan& plan, const std::string& node) {
  std::vector<std::string> words = {plan.zerorun, kAgentCommand, join_words(plan.addresses, ","),
                                    std::to_string(plan.port)};
  if (!node.empty()) words.push_back(node);
  return words;
}

// The command line that another host's login shell runs. `exec` replaces that shell by the agent; every
// common shell has it.
std::string agent_line(const StartPlan& plan, const std::string& node) {
  std::string line = "exec";
  for (const std::string& word : agent_arguments(plan, node)) line += " " + shell_word(word);
  return line;
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

StartCommand by_ssh(const StartPlan& plan, const std::string& host, int node) {
  StartCommand command{"ssh to " + host, node, {"ssh"}, {}, {}, plan.ticket + "\n"};
  // -T, -x: no terminal, no X11. BatchMode: never ask for a password, which nobody could type for many hosts.
  command.arguments = {"ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30"};
  if (plan.ssh_port) append(command.arguments, {"-p", std::to_string(*plan.ssh_port)});
  append(command.arguments, plan.extra);
  append(command.arguments, {"--", host, agent_line(plan, std::to_string(node))});
  return command;
}

// pdsh does not pass its stdin on, so the ticket is in the command: docs/security.md says who can read it.
StartCommand by_pdsh(const StartPlan& plan, const std::string& hosts) {
  StartCommand command{"pdsh", -1, {"pdsh"}, {"pdsh", "-S", "-f", "1024"}, {{"PDSH_RCMD_TYPE", "ssh"}}, ""};
  if (plan.ssh_port) {
    command.additions.emplace_back("PDSH_SSH_ARGS_APPEND", "-p " + std::to_string(*plan.ssh_port));
  }
  append(command.arguments, plan.extra);
  const std::string assignment = std::string(kTicketVariable) + "=" + plan.ticket;
  // pdsh replaces %n by the host's number.
  append(command.arguments, {"-w", hosts, "exec env " + assignment + agent_line(plan, "").substr(4) + " %n"});
  return command;
}

StartCommand by_mpi(const StartPlan& plan, const std::string& hosts, const std::string& count) {
  StartCommand command{"mpirun", -1, {}, {}, {{kTicketVariable, plan.ticket}}, ""};
  if (plan.starter == Starter::openmpi) {
    command.candidates = {"mpirun.openmpi", "mpirun"};
    command.arguments = {"mpirun",     "-n",        count,  "--host", hosts,          "--map-by",
                         "ppr:1:node", "--bind-to", "none", "-x",     kTicketVariable};
  } else {
    command.candidates = {"mpiexec.hydra", "mpirun.mpich", "mpirun"};
    command.arguments = {"mpirun",   "-n",   count,       "-ppn",         "1", "-hosts", hosts,
                         "-bind-to", "none", "-genvlist", kTicketVariable};
  }
  append(command.arguments, plan.extra);
  append(command.arguments, agent_arguments(plan, ""));
  return command;
}

StartCommand by_slurm(const StartPlan& plan, const std::string& hosts, const std::string& count) {
  StartCommand command{"srun", -1, {"srun"}, {}, {{kTicketVariable, plan.ticket}}, ""};
  command.arguments = {"srun",
                       "--nodes",
                       count,
                       "--ntasks",
                       count,
                       "--ntasks-per-node",
                       "1",
                       "--nodelist",
                       hosts,
                       "--cpu-bind=none",
                       "--kill-on-bad-exit=0",
                       "--export=ALL"};
  append(command.arguments, plan.extra);
  append(command.arguments, agent_arguments(plan, ""));
  return command;
}

}  // namespace

Starter parse_starter(const std::string& name) {
  for (const auto& [known, starter] : kStarters) {
    if (name == known) return starter;
  }
  const bool of_deepspeed = name == "impi" || name == "mvapich";
  throw UserError("--launcher " + name + ": expected ssh, pdsh, openmpi, mpich or slurm" +
                  (of_deepspeed ? " (DeepSpeed has " + name + ", zerorun does not support it)" : ""));
}

std::vector<StartCommand> start_commands(const StartPlan& plan, const std::vector<std::string>& hosts,
                                         const std::vector<int>& nodes) {
  const std::string all = join_words(hosts, ",");
  const std::string count = std::to_string(hosts.size());
  switch (plan.starter) {
    case Starter::pdsh:
      return {by_pdsh(plan, all)};
    case Starter::openmpi:
    case Starter::mpich:
      return {by_mpi(plan, all, count)};
    case Starter::slurm:
      return {by_slurm(plan, all, count)};
    case Starter::ssh:
      break;
  }
  std::vector<StartCommand> commands;
  for (const int node : nodes) commands.push_back(by_ssh(plan, hosts[node], node));
  return commands;
}

}  // namespace zerorun::launcher
