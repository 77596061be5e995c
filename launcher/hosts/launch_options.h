// Parses the command line of `zerorun`. Pure: does not inspect the machine or print.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/remote_start.h"
#include "launcher/rank_logs.h"

namespace zerorun::launcher {

struct LaunchOptions {
  std::string hostfile;               // empty if not given
  std::string include, exclude;       // unparsed; empty if not given
  std::optional<int> nodes;           // --num_nodes: hosts
  std::optional<int> ranks_per_node;  // --num_gpus
  std::string ranks_by_kind;          // --num_gpus gpu, cpu or auto; else empty
  std::optional<int> node_rank;       // the launcher runs once on each host; this is the number of this host
  std::string rdzv_endpoint;          // HOST[:PORT] where the launchers of all hosts meet; empty if not given
  std::string rdzv_id;                // a text that the launchers of one job share; empty if not given
  Starter starter = Starter::ssh;     // --launcher: what starts ranks on other hosts
  std::vector<std::string> launcher_args;
  std::optional<int> ssh_port;
  bool this_host_alone = false;    // asked for by one of torchrun's options: no usual hostfile is read
  bool force_multi = false;        // start agents even if the job has one host
  std::string master_addr;         // empty: rank 0's host
  std::optional<int> master_port;  // absent: a free port, or kDefaultPort with --node_rank
  std::string device;              // --device: auto, cpu or cuda; empty if not given
  std::string comm;                // --comm: auto, shm, two-level or gloo; empty if not given
  double timeout_seconds = 600;
  std::optional<double> hung_after_seconds;  // absent: as long as a collective may take
  std::chrono::milliseconds grace{3000};
  std::chrono::milliseconds failure_grace{1000};  // equals --grace if that is given
  LogOptions logs;
  std::string timeline;        // the archive; empty if not given
  std::string timeline_steps;  // "10:20"; empty if not given
  std::string venv_script;
  bool save_pid = false;
  bool quiet = false;                // print failures only
  bool verbose = false;              // --log_level debug: print the commands that start agents
  bool bind_cores_to_rank = false;   // each rank runs on cores of its own
  std::string bind_core_list;        // the processors to divide; empty: all
  bool module = false;               // the program is the name of a Python module
  bool no_python = false;            // the program is run as it is, although its name ends in .py
  bool as_deepspeed = false;         // `import deepspeed` in the program finds the package zerorun
  bool pass_local_rank = false;      // the program gets --local_rank=N, as from DeepSpeed's launcher
  int max_restarts = 0;              // how often the ranks are started again after a failure
  int hold_every = 0;                // ranks hold the state of each so-manieth step in memory; 0: of none
  int min_nodes = 0;                 // a restart leaves out hosts if so many are left; 0: it needs all
  double host_wait_seconds = 30;     // how long such a restart waits for hosts
  bool dry_run = false;              // print the ranks' commands instead of running them
  std::vector<std::string> command;  // the program and its arguments, untouched
};

/// The port where ranks meet if the user starts a launcher on each host. Those launchers cannot agree on a
/// free port.
inline constexpr int kDefaultPort = 29500;
inline constexpr int kHighestPort = 65535;

/// The text that the user requests with --help or --version instead of a job.
struct Information {
  std::string text;
};

/// Throws UserError.
std::variant<LaunchOptions, Information> parse_launch_options(int argc, const char* const* argv);

}  // namespace zerorun::launcher
