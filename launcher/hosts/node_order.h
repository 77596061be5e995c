// The messages between the launcher and the agent of a host, as payloads of frames. They are CBOR, because
// arguments and variables may contain any bytes. Plain values; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/placement.h"
#include "launcher/rank_failure.h"
#include "launcher/rank_logs.h"

namespace zerorun::launcher {

/// The longest time between SIGTERM and SIGKILL.
inline constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(1);

/// The keeper of a host's held memory (keeper.h).
struct KeeperOrder {
  int port = 0;        // where the launcher waits for keepers; 0: the job has none
  std::string ticket;  // by which the launcher and its keepers recognise each other
  std::string tag;     // of the keeper that the agent starts if it does not find the one that should be there
  std::string there;   // what that one holds (HeldMemory::place()); empty: none should be there

  bool operator==(const KeeperOrder&) const = default;
};

/// The part of a job that one host runs.
struct NodeOrder {
  std::vector<Node> nodes;             // of the whole job
  int node = 0;                        // this host's number among them
  bool slots_named = false;            // --include or --exclude chose the slots: they are numbers of GPUs
  std::vector<std::string> arguments;  // the program's name and arguments
  std::vector<std::pair<std::string, std::string>> variables;  // forwarded from the launcher's environment
  std::string folder;                                          // working folder of the ranks
  std::string venv_script;                                     // read by bash before the program; empty: none
  std::string token;                                           // ZERORUN_JOB
  std::string device, comm;                                    // as in JobEnvironment
  double timeout_seconds = 0;
  bool terminal = false;
  std::string timeline, timeline_steps;  // as in JobEnvironment
  int full_world_size = 0;               // likewise
  KeeperOrder keeper;
  std::chrono::milliseconds grace{0}, failure_grace{0};
  std::chrono::milliseconds hung_after{0};  // as in JobPlan
  LogOptions logs;
  bool bind_cores = false;     // --bind_cores_to_rank
  std::string bind_core_list;  // --bind_core_list
  std::optional<int> port;     // for node 0 only: the port to open, where the ranks meet (0: a free one)

  bool operator==(const NodeOrder&) const = default;
};

/// Where the ranks of a host meet the others, once node 0 has opened the port.
struct MeetingPoint {
  std::string address;
  int port = 0;
  std::string held_memory = {};  // as in JobEnvironment

  bool operator==(const MeetingPoint&) const = default;
};

/// How an agent introduces itself.
struct AgentHello {
  std::string version;  // of zerorun
  int node = -1;        // number of its node; -1: the launcher finds it by the host's name, or chooses it
  std::string host;     // the host's own name
  std::string layout;   // the job's layout as the agent knows it (describe_layout()); empty: not known

  bool operator==(const AgentHello&) const = default;
};

/// What a keeper holds.
struct KeeperHello {
  std::string tag;    // that it was started with
  std::string place;  // HeldMemory::place()
  int port = 0;       // where ranks of other hosts read
  int pid = 0;        // its process

  bool operator==(const KeeperHello&) const = default;
};

/// Why an agent ends without having run its ranks.
struct AgentTrouble {
  std::string message;
  bool user_mistake = false;

  bool operator==(const AgentTrouble&) const = default;
};

/// How an agent's ranks have ended.
struct NodeResult {
  int exit_code = 0;
  int interrupted_by = 0;  // the signal that interrupted the agent and so ended the ranks; 0: none

  bool operator==(const NodeResult&) const = default;
};

/// A rank that a signal or a debugger has stopped. `description`: from describe_stop().
struct StoppedRank {
  int rank = 0;
  std::string description;

  bool operator==(const StoppedRank&) const = default;
};

/// Bytes that a rank has printed. `rank`: its number in the job.
struct RankOutput {
  int rank = 0;
  Stream stream = Stream::out;
  std::string_view bytes;
};

std::string encode(const NodeOrder& order);
std::string encode(const MeetingPoint& point);
std::string encode(const AgentHello& hello);
std::string encode(const KeeperHello& hello);
std::string encode(const AgentTrouble& trouble);
std::string encode(const NodeResult& result);
std::string encode(const StoppedRank& stopped);
std::string encode(const RankFailure& failure);
std::string encode(const RankOutput& output);

/// Throws Error if `payload` is not a valid Message.
template <typename Message>
Message decode(std::string_view payload);
template <>
RankOutput decode(std::string_view payload);

/// Text with each host of a job, its number of ranks, and --max_restarts: shows whether two launchers were
/// started for the same job.
std::string describe_layout(const std::vector<Node>& nodes, int max_restarts);

}  // namespace zerorun::launcher
