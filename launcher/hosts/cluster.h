// The launcher's part of a job on several hosts: waits for an agent of each host, gives it its ranks, prints
// their output, and ends the job everywhere when a rank, an agent, a host or a connection fails. Made and run
// once, on the main thread.
//
// The processes form a tree: the launcher has a connection to each agent, and each agent starts the ranks of
// its host. An agent ends when it loses the launcher, and a rank ends when it loses its agent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/listening.h"
#include "base/seal.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/hosts/agent_listener.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/node_order.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/hosts/starter_processes.h"
#include "launcher/signals.h"

namespace zerorun::launcher {

struct ClusterPlan {
  NodeOrder order;                          // for every host; Cluster sets `node` and `port`
  std::string master_addr;                  // empty: node 0's address, found from the agents' connections
  int master_port = 0;                      // 0: node 0 chooses a free port
  ListeningSocket listening;                // where agents connect; moved to the AgentListener
  bool listening_is_meeting_point = false;  // rank 0, on this host, takes over `listening`
  std::string ticket;
  std::vector<StartCommand> commands;     // start agents; none if the user starts a launcher on each host
  std::optional<int> own_node;            // this machine's node, if this launcher starts an agent on it
  std::string own_address = "localhost";  // where the agent of this machine finds the launcher
  std::string own_program;                // zerorun's path, to start the agent of this machine
  std::chrono::milliseconds timeout{0};   // until all agents have connected
  std::string version;
};

class Cluster {
 public:
  Cluster(ClusterPlan plan, Console& console, Signals& signals, const Guardian& guardian);
  /// Kills the started processes that an exception has left running.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Returns the exit code, as the launcher of one host does; 1 if a host or a connection failed first.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kTick{50};  // the longest wait while the job starts or ends

  // starting (agents connect) -> opening (node 0 opens the port) -> running -> ending -> over; the phases
  // between may be skipped.
  enum class Phase { starting, opening, running, ending, over };
  enum class AgentState { awaited, connected, over, lost };

  struct Agent {
    AgentState state = AgentState::awaited;
    std::optional<FrameSocket> socket;
    std::string address;  // as this host sees it
    size_t untaken = 0;   // bytes of its output that this launcher has not confirmed yet
  };
  /// The first thing that went wrong.
  struct Failure {
    std::vector<std::string> lines;  // the report
    int exit_code = 1;
  };

  void start_agents();
  void wait_for_something();
  void service_agents();
  void greet(NewAgent agent);
  int node_of(const AgentHello& hello, std::string& refusal) const;
  void handle(int node, const Frame& frame);
  void start_ranks(int port);
  void enter_phase_that_is_due();
  void send_to_all(FrameType type, const std::string& payload);

  // cluster_end.cpp
  void check_life();
  void handle_signals();
  void handle_interruption(int signal);
  void look_for_missing_host();
  void handle_starter_end(const StarterProcesses::Ended& starter);

  void fail(Failure failure, std::chrono::milliseconds grace);
  void lose(int node, const std::string& reason);
  void begin_ending(std::chrono::milliseconds grace);
  void finish();
  void wait_for_starters(std::chrono::milliseconds patience);
  void end_orphans();

  bool all_connected() const;
  bool all_over() const;
  const std::string& host(int node) const { return plan_.order.nodes[node].host; }
  std::string name_of_rank(int rank) const;
  std::string reachable_address_of_node_0() const;
  std::string missing_hosts() const;
  /// What to add to an error if connections without the ticket came; else empty.
  std::string strangers() const;

  ClusterPlan plan_;
  Placement placement_;
  Seal ticket_;
  Console& console_;
  Signals& signals_;
  AgentListener listener_;
  StarterProcesses starters_;
  std::vector<Agent> agents_;  // by node
  Phase phase_ = Phase::starting;
  Clock::time_point deadline_;  // of the phases starting and ending
  std::optional<Failure> failure_;
  std::vector<std::string> stopped_;  // reports about stopped ranks
  std::optional<int> interrupted_by_;
  Clock::time_point interrupted_at_;
  Clock::time_point last_beat_, last_loop_;
};

}  // namespace zerorun::launcher
