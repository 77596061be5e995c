// The commands that start agents on the hosts of a job: ssh to each host, or one pdsh, mpirun or srun for
// all. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun::launcher {

/// A part of the line that pdsh prints when the ssh to one of its hosts ends with an error: "pdsh@here:
/// worker-1: ssh exited with exit code 255". pdsh goes on with the other hosts.
inline constexpr char kPdshFailure[] = ": ssh exited with exit code ";

enum class Starter { ssh, pdsh, openmpi, mpich, slurm };

/// The starter that --launcher names. Throws UserError for other names. If DeepSpeed has a starter of that
/// name, the message says so.
Starter parse_starter(const std::string& name);

struct StartPlan {
  Starter starter = Starter::ssh;
  std::vector<std::string> extra;  // --launcher_args
  std::optional<int> ssh_port;
  std::string zerorun;                 // the program's path on every host
  std::vector<std::string> addresses;  // where the hosts may reach the launcher
  int port = 0;                        // where the launcher listens
  std::string ticket;                  // the job's secret (handshake.h)
};

/// One process that starts agents.
struct StartCommand {
  std::string name;                     // "ssh to worker-1", for messages
  int node = -1;                        // the node whose agent it starts; -1: it starts all agents
  std::vector<std::string> candidates;  // names of the program; the first one that is in PATH runs
  std::vector<std::string> arguments;   // argv
  std::vector<std::pair<std::string, std::string>> variables;       // set unless they are set already
  std::string input;                                                // for its stdin
  std::vector<std::pair<std::string, std::string>> additions = {};  // put at the end of the variables' values
};

/// `hosts`: the host of each node. `nodes`: the nodes to start with ssh; other starters start all nodes.
std::vector<StartCommand> start_commands(const StartPlan& plan, const std::vector<std::string>& hosts,
                                         const std::vector<int>& nodes);

}  // namespace zerorun::launcher
