#include "launcher/hosts/cluster.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/error.h"
#include "base/route.h"
#include "launcher/heartbeat.h"
#include "launcher/hosts/agent.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/keeper.h"
#include "launcher/job_control.h"
#include "launcher/rank_labels.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

// An agent waits for less until its host's keeper of memory has connected.
constexpr milliseconds kKeepersPatience(30'000);
// Launchers that come again do so at once. So one that has not come after this time may be lost.
constexpr milliseconds kQuietRestart(1000);

}  // namespace

Cluster::Cluster(ClusterPlan plan, HostKeepers* keepers, JoinedLaunchers* joined, Console& console,
                 Signals& signals, const Guardian& guardian)
    : plan_(std::move(plan)),
      keepers_(keepers),
      joined_(joined),
      placement_(plan_.order.nodes),
      ticket_(plan_.ticket),
      console_(console),
      signals_(signals),
      listener_(std::move(plan_.listening), ticket_, console),
      starters_(console, placement_.world_size(), signals, guardian),
      agents_(plan_.order.nodes.size()),
      deadline_(Clock::now() + plan_.timeout),
      last_beat_(Clock::now()),
      last_loop_(Clock::now()) {}

Cluster::~Cluster() {
  starters_.signal_all(SIGKILL);
}

int Cluster::run() {
  try {
    start_agents();
  } catch (const Interrupted&) {
    handle_signals();
  }
  while (phase_ != Phase::over) {
    wait_for_something();
    handle_signals();
    if (console_.is_gone() && !interrupted_by_) handle_interruption(SIGPIPE);
    check_life();
    enter_phase_that_is_due();
  }
  finish();
  if (failure_) return failure_->exit_code;
  return interrupted_by_ ? 128 + *interrupted_by_ : 0;
}

void Cluster::start_agents() {
  for (const StartCommand& command : plan_.commands) starters_.start(command);
  if (!plan_.own_node) return;
  const int inherited = plan_.listening_is_meeting_point ? listener_.fd() : -1;
  StartCommand command{"the agent of this host", *plan_.own_node, {}, {}, {}, plan_.ticket + "\n"};
  command.arguments = {plan_.own_program, kAgentCommand, plan_.own_address, std::to_string(listener_.port()),
                       std::to_string(*plan_.own_node)};
  if (inherited >= 0) command.variables.emplace_back(kMeetingVariable, std::to_string(inherited));
  starters_.start(command, plan_.own_program, inherited);
}

void Cluster::wait_for_something() {
  std::vector<pollfd> entries;
  starters_.append_poll_entries(entries);
  entries.push_back({signals_.fd(), POLLIN, 0});
  listener_.append_poll_entries(entries);
  for (const Agent& agent : agents_) {
    if (agent.socket) agent.socket->append_poll_entry(entries);
  }
  console_.append_poll_entries(entries);
  if (keepers_ != nullptr) keepers_->append_poll_entries(entries);
  const milliseconds timeout = phase_ == Phase::running ? kControlTick : kTick;
  ::poll(entries.data(), entries.size(), static_cast<int>(timeout.count()));

  starters_.read(entries, 0);
  if (keepers_ != nullptr) keepers_->service();
  if (joined_ != nullptr) joined_->service();
  for (NewAgent& agent : listener_.service()) greet(std::move(agent));
  look_for_missing_host();
  service_agents();
  console_.write_some();
}

int Cluster::node_of(const AgentHello& hello, std::string& refusal) const {
  const int nodes = static_cast<int>(agents_.size());
  int node = hello.node;
  for (int number = 0; node < 0 && number < nodes; ++number) {
    const std::string name = host(number).substr(host(number).find('@') + 1);
    if (agents_[number].state == AgentState::awaited && is_this_machine(name, hello.host)) node = number;
  }
  // A launcher that joins without a number gets the first node that has no agent yet.
  for (int number = 0; node < 0 && !hello.layout.empty() && number < nodes; ++number) {
    if (agents_[number].state == AgentState::awaited && number != plan_.own_node) node = number;
  }
  if (hello.version != plan_.version) {
    refusal =
        "it is zerorun " + hello.version + ", and the launcher " + plan_.version + ": install one version";
  } else if (!hello.layout.empty() && hello.layout != plan_.layout) {
    refusal = "it was started for the hosts and ranks '" + hello.layout +
              "', and the launcher of node 0 for '" + plan_.layout + "': give all the same options";
  } else if (node < 0 || node >= nodes) {
    refusal = node < 0 ? "its name is none of the job's hosts' that are missing"
                       : "the job has no node " + std::to_string(node);
  } else if (agents_[node].state != AgentState::awaited) {
    refusal = "node " + std::to_string(node) + " of this job has connected already";
  }
  return node;
}

void Cluster::greet(NewAgent agent) {
  auto& [socket, hello, address] = agent;
  if (joined_ != nullptr && phase_ > Phase::starting) {
    joined_->add(std::move(socket));  // this attempt ends: the launcher may take part in the next one
    return;
  }
  std::string refusal = phase_ == Phase::starting ? "" : "the job does not wait for hosts any more";
  const int node = node_of(hello, refusal);
  if (!refusal.empty()) {
    refusal = "host " + hello.host + " (" + address + ") cannot take part: " + refusal;
    socket.send(FrameType::refusal, refusal);
    console_.notice(refusal);
    // If this launcher has started the agents, the job cannot run without the refused one. If it has not, the
    // refused agent may belong to another job, so this job goes on.
    if (!plan_.commands.empty() && phase_ == Phase::starting) {
      fail({{.name = hello.host, .end = "cannot take part", .report = {refusal}, .is_mistake = true}},
           milliseconds(0));
    }
    return;
  }
  NodeOrder order = plan_.order;
  order.node = node;
  if (node == 0) order.port = plan_.listening_is_meeting_point ? listener_.port() : plan_.master_port;
  if (keepers_ != nullptr) order.keeper = keepers_->order_for(node);
  socket.send(FrameType::order, encode(order));
  agents_[node] = {AgentState::connected, std::move(socket), address};
}

void Cluster::service_agents() {
  const bool beat = Clock::now() - last_beat_ >= kHeartbeat;
  if (beat) last_beat_ = Clock::now();
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) {
    Agent& agent = agents_[node];
    if (!agent.socket) continue;
    if (beat) agent.socket->send(FrameType::heartbeat);
    agent.socket->service();
    // Agents stop sending output while kMostUntaken bytes (agent_link.cpp) of it are not confirmed.
    while (agent.socket) {
      std::optional<Frame> frame = agent.socket->next();
      if (!frame) break;
      try {
        handle(node, *frame);
      } catch (const Error& error) {
        lose(node, error.what());
      }
    }
    if (agent.socket && agent.socket->is_closed()) {
      lose(node, "the connection to its agent has been closed: the agent was killed, or the host restarted");
    }
  }
}

void Cluster::handle(int node, const Frame& frame) {
  Agent& agent = agents_[node];
  switch (frame.type) {
    case FrameType::output: {
      const auto output = decode<RankOutput>(frame.payload);
      if (output.rank < 0 || output.rank >= placement_.world_size()) return;
      console_.feed(output.rank, output.stream, output.bytes);
      agent.untaken += output.bytes.size();
      break;
    }
    case FrameType::output_end: {
      const auto output = decode<RankOutput>(frame.payload);
      if (output.rank >= 0 && output.rank < placement_.world_size())
        console_.close(output.rank, output.stream);
      break;
    }
    case FrameType::notice:
      console_.notice(host(node) + ": " + frame.payload);
      break;
    case FrameType::failure: {
      const auto failure = decode<RankFailure>(frame.payload);
      const FailedAttempt attempt = failed_attempt(failure, name_of_rank(failure.rank), {});
      fail({attempt, std::max(1, exit_code_of(failure.wait_status))},
           attempt.is_mistake ? milliseconds(0) : plan_.order.failure_grace);
      break;
    }
    case FrameType::stopped: {
      const auto stopped = decode<StoppedRank>(frame.payload);
      stopped_.push_back(name_of_rank(stopped.rank) + " is " + stopped.description);
      break;
    }
    case FrameType::trouble: {
      const auto trouble = decode<AgentTrouble>(frame.payload);
      if (phase_ < Phase::running) unreached_ = {node};
      fail({{.name = host(node),
             .end = "cannot start its ranks",
             .report = {host(node) + ": " + trouble.message},
             .is_mistake = trouble.user_mistake},
            trouble.user_mistake ? 2 : 1},
           milliseconds(0));
      break;
    }
    case FrameType::port:
      if (node == 0) meeting_port_ = decode<MeetingPoint>(frame.payload).port;
      break;
    case FrameType::keeper:
      agent.keeper = frame.payload;
      break;
    case FrameType::over:
      handle_end(node, decode<NodeResult>(frame.payload));
      break;
    default:
      break;
  }
}

void Cluster::start_ranks(int port) {
  phase_ = Phase::running;
  const std::string address = plan_.master_addr.empty() ? reachable_address_of_node_0() : plan_.master_addr;
  const auto count = [](size_t number, const char* thing) {
    return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
  };
  const auto ranks = static_cast<size_t>(placement_.world_size());
  console_.information(count(ranks, "rank") + (ranks == 1 ? " starts on " : " start on ") +
                       count(agents_.size(), "host") + (ranks == 1 ? ", at " : ", and meet at ") + address +
                       ":" + std::to_string(port));
  if (keepers_ != nullptr) keepers_->tell_token(plan_.order.token);
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) {
    const std::string held = keepers_ != nullptr ? keepers_->text_for(node) : "";
    if (agents_[node].socket)
      agents_[node].socket->send(FrameType::start, encode(MeetingPoint{address, port, held}));
  }
  times_.began = Clock::now();
  if (plan_.describe_start) console_.notice(plan_.describe_start());
}

// The address from which node 0's agent has connected. If node 0 is this host, that may be a loopback
// address. Then the function returns the address by which an agent of another host has reached this host.
std::string Cluster::reachable_address_of_node_0() const {
  if (!is_loopback(agents_[0].address)) return agents_[0].address;
  for (const Agent& agent : agents_) {
    if (!agent.socket || is_loopback(agent.address)) continue;
    if (const std::string own = agent.socket->own_address(); !own.empty()) return own;
  }
  return agents_[0].address;
}

// After a restart: at the first start users know that they have to start all launchers.
void Cluster::tell_of_wait() {
  const bool waits = phase_ == Phase::starting && joined_ != nullptr && plan_.order.logs.attempt > 0;
  if (!waits || has_told_of_wait_ || Clock::now() < deadline_ - plan_.timeout + kQuietRestart) return;
  has_told_of_wait_ = true;
  const auto left = std::chrono::ceil<std::chrono::seconds>(deadline_ - Clock::now());
  console_.notice("restart " + std::to_string(plan_.order.logs.attempt) + ": waits for " +
                  std::to_string(left.count()) + " s (--timeout) until the launcher of " + missing_hosts() +
                  " comes again; where it has ended, start it again with the same command");
}

void Cluster::enter_phase_that_is_due() {
  const bool late = Clock::now() >= deadline_;
  tell_of_wait();
  if (phase_ == Phase::starting && all_connected()) {
    phase_ = Phase::opening;
    deadline_ = Clock::now() + kKeepersPatience;
    // Rank 0 may take over the listening socket. So the launcher stops accepting: new connections are for
    // rank 0.
    listener_.close();
    agents_[0].socket->send(FrameType::open);
  } else if (phase_ == Phase::starting && late) {
    unreached_ = awaited();
    fail(
        {{.name = missing_hosts(),
          .end = "did not connect",
          .report = {"no agent of " + missing_hosts() + " has connected in time (--timeout)" + strangers()}}},
        milliseconds(0));
  } else if (phase_ == Phase::opening && meeting_port_ && all_keepers_ready()) {
    start_ranks(*meeting_port_);
  } else if (phase_ == Phase::opening && meeting_port_ && late) {
    fail({{.name = "the job",
           .end = "could not start",
           .report = {"the memory of --hold_every is not ready on all hosts: a keeper (zerorun " +
                      std::string(kKeeperCommand) + ") has ended or does not answer"}}},
         milliseconds(0));
  } else if (phase_ == Phase::running && all_over()) {
    phase_ = Phase::over;
  } else if (phase_ == Phase::ending && (all_over() || late)) {
    for (size_t node = 0; node < agents_.size(); ++node) {
      if (agents_[node].state == AgentState::connected) {
        has_survivors_ = true;
        console_.notice(host(static_cast<int>(node)) +
                        " does not say that its ranks have ended: see `ps -ej` there");
      }
    }
    phase_ = Phase::over;
  }
}

void Cluster::send_to_all(FrameType type, const std::string& payload) {
  for (Agent& agent : agents_) {
    if (agent.socket) agent.socket->send(type, payload);
  }
}

bool Cluster::all_keepers_ready() const {
  if (keepers_ == nullptr) return true;
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) {
    const std::optional<std::string>& tag = agents_[node].keeper;
    if (!tag || !keepers_->is_ready(node, *tag)) return false;
  }
  return true;
}

bool Cluster::all_connected() const {
  return std::ranges::all_of(agents_,
                             [](const Agent& agent) { return agent.state == AgentState::connected; });
}

bool Cluster::all_over() const {
  return std::ranges::none_of(agents_,
                              [](const Agent& agent) { return agent.state == AgentState::connected; });
}

std::string Cluster::name_of_rank(int rank) const {
  if (rank < 0 || rank >= placement_.world_size()) return "a rank that does not exist";
  return "rank " + std::to_string(rank) + " on " + host(placement_.node_of(rank));
}

std::string Cluster::strangers() const {
  const int64_t count = listener_.strangers();
  if (count == 0) return "";
  return "; " + std::to_string(count) + (count == 1 ? " connection" : " connections") + " to port " +
         std::to_string(listener_.port()) +
         " came from programs that do not know this job's ticket (another job, or a scanner of ports)";
}

std::vector<int> Cluster::awaited() const {
  std::vector<int> nodes;
  for (size_t node = 0; node < agents_.size(); ++node) {
    if (agents_[node].state == AgentState::awaited) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

std::string Cluster::missing_hosts() const {
  std::string names;
  for (const int node : awaited()) names += (names.empty() ? "" : ", ") + host(node);
  return names;
}

}  // namespace zerorun::launcher
