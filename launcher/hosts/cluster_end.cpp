// How a job on several hosts ends: what ends it, and how all of its processes are brought to an end.
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "launcher/heartbeat.h"
#include "launcher/hosts/cluster.h"
#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

// After the grace, agents have this long to kill their ranks and send their results.
constexpr milliseconds kReportPatience(2500);
// What a Job takes beyond its grace to kill its ranks.
constexpr milliseconds kRankKillPatience(1000);
constexpr milliseconds kAgentFlushPatience(500);
// Agents that have sent their results exit at once, and so do the processes that started them. But an agent
// that has not connected yet would try again and again, so the process that started it is killed after this
// time.
constexpr milliseconds kStarterPatience(1000);
constexpr milliseconds kAgentKillPatience(300);
// As in job.cpp, a second SIGINT within this time is ignored.
constexpr milliseconds kSameAgentInterruption(100);

}  // namespace

void Cluster::check_life() {
  const Clock::time_point now = Clock::now();
  const bool paused = now - last_loop_ > kOwnPause;
  last_loop_ = now;
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) {
    Agent& agent = agents_[node];
    if (!agent.socket) continue;
    if (paused) agent.socket->forgive_silence();
    if (agent.untaken > 0 && console_.takes_more(Stream::out) && console_.takes_more(Stream::err)) {
      agent.socket->send(FrameType::read, std::to_string(std::exchange(agent.untaken, 0)));
    }
    if (now - agent.socket->last_heard() <= kSilence) continue;
    const bool is_stopped = agent.socket->is_acknowledged();
    lose(node,
         "no sign of life for " + std::to_string(kSilence.count() / 1000) +
             (is_stopped
                  ? " s, although its system acknowledges what is sent: the host's processes are stopped"
                  : " s, and nothing that is sent arrives: the network link is down, or the host is off"));
    // If only the agent is stopped, its ranks go on.
    has_survivors_ = has_survivors_ || is_stopped;
  }
}

void Cluster::handle_signals() {
  while (std::optional<int> signal = signals_.next()) {
    if (*signal == SIGCHLD) {
      for (const StarterProcesses::Ended& starter : starters_.reap()) handle_starter_end(starter);
    } else {
      handle_interruption(*signal);
    }
  }
}

void Cluster::handle_interruption(int signal) {
  const Clock::time_point now = Clock::now();
  const bool first = !interrupted_by_;
  is_unwanted_ = true;
  if (first && !failure_) {
    interrupted_by_ = signal;
    interrupted_at_ = now;
  }
  if (phase_ < Phase::ending) {
    console_.notice(signal == SIGPIPE  ? "nobody reads stdout any more: ending the job"
                    : signal == SIGINT ? "SIGINT: ending the job (Ctrl-C once more kills it at once)"
                                       : signal_name(signal) + ": ending the job");
    begin_ending(plan_.order.grace);
  } else if (phase_ == Phase::ending && signal == SIGINT &&
             (first || now - interrupted_at_ > kSameAgentInterruption)) {
    begin_ending(milliseconds(0));
  }
}

// pdsh goes on without a host that it could not reach. So only its output tells that the host is missing.
void Cluster::look_for_missing_host() {
  if (phase_ != Phase::starting) return;
  const std::optional<std::string> line = starters_.find_line(kPdshFailure);
  if (!line) return;
  fail({{.name = "pdsh",
         .end = "did not reach a host",
         .report = {*line + ", before the agent there had connected"}}},
       milliseconds(0));
}

// The ranks of a node have ended.
void Cluster::handle_end(int node, const NodeResult& result) {
  agents_[node].state = AgentState::over;
  if (result.interrupted_by != 0) agents_[node].socket.reset();  // it does not come again
  leave(node);
  if (result.interrupted_by == 0) return;
  // SIGTERM may come from a host that is shut down, which is lost like one that fails.
  is_unwanted_ = is_unwanted_ || result.interrupted_by == SIGINT || result.interrupted_by == SIGPIPE;
  if (phase_ >= Phase::ending) return;
  const std::string end = "was ended by " + signal_name(result.interrupted_by);
  fail({{.name = "the job on " + host(node), .end = end, .report = {"the job on " + host(node) + " " + end}},
        128 + result.interrupted_by},
       plan_.order.grace);
}

// A process that has started an agent must run as long as the agent: if it ends earlier, the job fails.
void Cluster::handle_starter_end(const StarterProcesses::Ended& starter) {
  if (phase_ >= Phase::ending) return;
  service_agents();  // an agent may have reported its end just before
  bool needed = false;
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) {
    if (starter.node >= 0 && starter.node != node) continue;
    const AgentState state = agents_[node].state;
    needed = needed || state == AgentState::awaited || state == AgentState::connected;
  }
  if (!needed) return;
  const bool early = phase_ == Phase::starting;
  std::vector<std::string> lines = {starter.name + " " + describe_end(starter.wait_status) +
                                    (early
                                         ? ", before the agent there had connected"
                                         : ", although ranks still ran: what it carried is cut off (was sshd "
                                           "killed, or the connection closed?)")};
  if (early) {
    if (starter.node >= 0) unreached_ = {starter.node};
    const int status = starter.wait_status;
    const bool not_found = WIFEXITED(status) && WEXITSTATUS(status) == 127;
    if (not_found)
      lines.front() += ": zerorun must be installed there at the same path, " + plan_.own_program;
  }
  const std::vector<std::string> last = starter.last_lines;
  if (!last.empty()) lines.front() += "; its last lines:";
  for (const std::string& line : last) lines.push_back("  " + line);
  fail({{.name = starter.name, .end = describe_end(starter.wait_status), .report = lines}},
       plan_.order.failure_grace);
}

void Cluster::fail(Failure failure, milliseconds grace) {
  if (!failure_ && !interrupted_by_) failure_ = std::move(failure);
  if (phase_ < Phase::ending) begin_ending(grace);
}

// The agent of a host that is lost ends its ranks by itself when it notices that, at the latest after
// kSilence.
void Cluster::lose(int node, const std::string& reason) {
  agents_[node].state = AgentState::lost;
  agents_[node].socket.reset();
  for (int rank = placement_.first_rank(node); rank < placement_.first_rank(node + 1); ++rank) {
    for (const Stream stream : kStreams) console_.close(rank, stream);
  }
  if (phase_ < Phase::running) unreached_ = {node};
  const milliseconds grace = std::max(plan_.order.failure_grace, kLostGrace);
  clear_at_ = std::max(clear_at_, Clock::now() + kSilence + grace + kRankKillPatience);
  fail({{.name = host(node), .end = "was lost", .report = {host(node) + ": " + reason}}},
       plan_.order.failure_grace);
}

void Cluster::leave(int node) {
  std::optional<FrameSocket>& socket = agents_[node].socket;
  if (socket && joined_ != nullptr && node != plan_.own_node) joined_->add(std::move(*socket));
  socket.reset();
}

void Cluster::begin_ending(milliseconds grace) {
  if (phase_ < Phase::ending) times_.found = Clock::now();
  phase_ = Phase::ending;
  deadline_ = Clock::now() + grace + kReportPatience;
  send_to_all(FrameType::end, std::to_string(grace.count()));
}

void Cluster::finish() {
  listener_.close();
  // Agents that are over exit when their connections are closed, and so do their starters.
  for (int node = 0; node < static_cast<int>(agents_.size()); ++node) leave(node);
  wait_for_starters(kStarterPatience);
  starters_.signal_all(SIGKILL);
  wait_for_starters(kAgentKillPatience);
  end_orphans();
  for (const std::string& line : stopped_) console_.notice(line);
  if (failure_) {
    for (const std::string& line : failure_->attempt.report) console_.notice(line);
  }
  let_judge();
  const bool in_a_hurry = failure_ || interrupted_by_;
  const Clock::time_point flushed = Clock::now() + kAgentFlushPatience;
  while (!console_.is_flushed() && !(in_a_hurry && Clock::now() >= flushed)) {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    console_.append_poll_entries(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kTick.count()));
    console_.write_some();
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;
      is_unwanted_ = true;
      if (!failure_ && !interrupted_by_) interrupted_by_ = *signal;
      return;  // a signal ends the wait for a slow reader
    }
  }
}

void Cluster::let_judge() {
  times_.ended = Clock::now();
  if (!failure_ || !plan_.judge || is_unwanted_ || !has_started_ranks()) return;
  failure_->attempt.times = times_;
  failure_->attempt.has_survivors = has_survivors_ || !orphans().empty();
  for (const std::string& line : plan_.judge(failure_->attempt)) console_.notice(line);
}

bool Cluster::wait_until(Clock::time_point end) {
  while (!is_unwanted_ && !console_.is_gone() && Clock::now() < end) {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    console_.append_poll_entries(entries);
    if (keepers_ != nullptr) keepers_->append_poll_entries(entries);
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::clamp(left, milliseconds(0), kTick).count()));
    console_.write_some();
    if (keepers_ != nullptr) keepers_->service();
    if (joined_ != nullptr) joined_->service();
    handle_signals();
  }
  return !is_unwanted_ && !console_.is_gone();
}

void Cluster::wait_for_starters(milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  while (starters_.any_runs() && Clock::now() < end) {
    pollfd entry = {signals_.fd(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(kTick.count()));
    handle_signals();
  }
}

std::vector<pid_t> Cluster::orphans() const {
  const bool has_keeper = keepers_ != nullptr && plan_.own_node;
  return starters_.orphans(has_keeper ? keepers_->pid_of(*plan_.own_node) : std::nullopt);
}

// If the agent of this host was killed, its orphans have become orphans of this process.
void Cluster::end_orphans() {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const Clock::time_point end = Clock::now() + kAgentKillPatience;
    std::set<pid_t> signalled;
    for (std::vector<pid_t> left = orphans(); Clock::now() < end; left = orphans()) {
      if (left.empty()) return;
      for (const pid_t orphan : left) {
        if (signalled.insert(orphan).second) ::kill(orphan, signal);
      }
      pollfd entry = {signals_.fd(), POLLIN, 0};
      ::poll(&entry, 1, static_cast<int>(kTick.count()));
      handle_signals();
    }
  }
}

}  // namespace zerorun::launcher
