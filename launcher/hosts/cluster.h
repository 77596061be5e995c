// The launcher's part of a job on several hosts: waits for an agent of each host, gives it its ranks, prints
// their output, and ends the job everywhere when a rank, an agent, a host or a connection fails. Made and run
// once for each attempt to run the job, on the main thread.
//
// The processes form a tree: the launcher has a connection to each agent, and each agent starts the ranks of
// its host. An agent ends when it loses the launcher, and a rank ends when it loses its agent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/listening.h"
#include "base/seal.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/hosts/agent_listener.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/host_keepers.h"
#include "launcher/hosts/joined_launchers.h"
#include "launcher/hosts/node_order.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/hosts/starter_processes.h"
#include "launcher/restarts.h"
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
  std::string layout;                     // of launchers that join: describe_layout()
  std::chrono::milliseconds timeout{0};   // until all agents have connected
  std::string version;
  std::function<std::string()> describe_start = {};  // a line for the user once the ranks start; or null
  Judge judge = {};                                  // of an attempt whose ranks have started; or null
};

class Cluster {
 public:
  /// `keepers`: of the same hosts; null: nothing is held in memory. `joined`: gets the connections of
  /// launchers that join a job which may be started again; null: there are none.
  Cluster(ClusterPlan plan, HostKeepers* keepers, JoinedLaunchers* joined, Console& console, Signals& signals,
          const Guardian& guardian);
  /// Kills the started processes that an exception has left running.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Returns the exit code, as the launcher of one host does; 1 if a host or a connection failed first.
  int run();
  /// What ended the attempt, unless the user did; null if nothing failed.
  const FailedAttempt* failure() const { return failure_ ? &failure_->attempt : nullptr; }
  /// The nodes whose hosts could not be reached, if that ended the attempt before its ranks started.
  const std::vector<int>& unreached() const { return unreached_; }
  bool has_started_ranks() const { return times_.began != Clock::time_point(); }
  /// Whether a signal interrupted the job here or on another host, or nobody reads its output any more.
  bool is_unwanted() const { return is_unwanted_; }
  /// When all ranks have surely ended, also those on hosts that cannot say so.
  AttemptTimes::Clock::time_point clear_at() const { return clear_at_; }
  /// Waits until then. Returns false if a signal has ended the wait.
  bool wait_until(AttemptTimes::Clock::time_point end);

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
    std::string address;                     // as this host sees it
    size_t untaken = 0;                      // bytes of its output that this launcher has not confirmed yet
    std::optional<std::string> keeper = {};  // the tag of its host's, once it is there (HostKeepers)
  };
  /// The first thing that went wrong.
  struct Failure {
    FailedAttempt attempt;
    int exit_code = 1;
  };

  void start_agents();
  void wait_for_something();
  void service_agents();
  void greet(NewAgent agent);
  void tell_of_wait();
  int node_of(const AgentHello& hello, std::string& refusal) const;
  void handle(int node, const Frame& frame);
  bool all_keepers_ready() const;
  void start_ranks(int port);
  void enter_phase_that_is_due();
  void send_to_all(FrameType type, const std::string& payload);

  // cluster_end.cpp
  void check_life();
  void handle_signals();
  void handle_interruption(int signal);
  void look_for_missing_host();
  void handle_end(int node, const NodeResult& result);
  void handle_starter_end(const StarterProcesses::Ended& starter);

  void fail(Failure failure, std::chrono::milliseconds grace);
  void lose(int node, const std::string& reason);
  /// Ends the connection to the node's agent, once its ranks have ended or must have.
  void leave(int node);
  void let_judge();
  void begin_ending(std::chrono::milliseconds grace);
  void finish();
  void wait_for_starters(std::chrono::milliseconds patience);
  void end_orphans();

  bool all_connected() const;
  bool all_over() const;
  const std::string& host(int node) const { return plan_.order.nodes[node].host; }
  std::string name_of_rank(int rank) const;
  std::string reachable_address_of_node_0() const;
  std::vector<int> awaited() const;
  std::string missing_hosts() const;
  std::vector<pid_t> orphans() const;
  /// What to add to an error if connections without the ticket came; else empty.
  std::string strangers() const;

  ClusterPlan plan_;
  HostKeepers* keepers_;
  JoinedLaunchers* joined_;
  Placement placement_;
  Seal ticket_;
  Console& console_;
  Signals& signals_;
  AgentListener listener_;
  StarterProcesses starters_;
  std::vector<Agent> agents_;  // by node
  Phase phase_ = Phase::starting;
  Clock::time_point deadline_;       // of the phases; running has none
  std::optional<int> meeting_port_;  // where the ranks meet, once it is open
  std::optional<Failure> failure_;
  std::vector<std::string> stopped_;  // reports about stopped ranks
  std::optional<int> interrupted_by_;
  Clock::time_point interrupted_at_;
  bool is_unwanted_ = false;
  bool has_survivors_ = false;  // ranks that could not be ended, on a host that is still connected
  bool has_told_of_wait_ = false;
  std::vector<int> unreached_;
  AttemptTimes times_;
  Clock::time_point clear_at_;
  Clock::time_point last_beat_, last_loop_;
};

}  // namespace zerorun::launcher
