#include "launcher/hosts/cluster_attempts.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/hosts/dry_run.h"
#include "launcher/hosts/host_keepers.h"
#include "launcher/hosts/joined_launchers.h"
#include "launcher/rank_labels.h"

namespace zerorun::launcher {
namespace {

using Clock = AttemptTimes::Clock;
using std::chrono::milliseconds;

// How long a restart waits before it tries again to reach all hosts.
constexpr std::chrono::seconds kPause(2);
// How long a try waits for agents, at most and at least.
constexpr milliseconds kMostPatience(30'000), kLeastPatience(5000);

milliseconds to_milliseconds(double seconds) {
  return milliseconds(std::llround(seconds * 1000));
}

// What the launcher prints from: the ranks, then the processes that start agents.
std::vector<std::string> sources_of(const ClusterPlan& plan) {
  std::vector<std::string> labels = rank_labels(plan.order.nodes);
  for (const StartCommand& command : plan.commands) labels.push_back(command.name);
  labels.emplace_back("agent");
  return labels;
}

// Decides what follows an attempt. A restart tries hosts that it cannot reach again, since they may be
// starting themselves; then it leaves them out if the user allows that.
class Attempts {
 public:
  Attempts(const LaunchOptions& options, std::vector<Node> nodes, Console& console)
      : options_(options), nodes_(std::move(nodes)), console_(console), restarts_(options.max_restarts) {}

  /// Adds what a plan needs so that its Cluster asks this object, and how long it waits for hosts. A host may
  /// take connections and do no more, so a restart waits for less than the time in which it tries.
  void watch(ClusterPlan& plan) {
    plan.timeout = to_milliseconds(options_.timeout_seconds);
    if (restarts_.count() > 0 && plan.listening_is_meeting_point) {
      // Launchers that join come by themselves, so a second try would reach no more of them.
      plan.timeout = std::max(milliseconds(kPause), milliseconds(seconds_left()));
    } else if (restarts_.count() > 0) {
      plan.timeout = std::clamp(plan.timeout / 4, milliseconds(kPause), kMostPatience);
      if (options_.min_nodes > 0)
        plan.timeout =
            std::min(plan.timeout, std::max(to_milliseconds(options_.host_wait_seconds), kLeastPatience));
    }
    plan.judge = [this](const FailedAttempt& attempt) { return restarts_.judge(attempt); };
    if (restarts_.count() > 0)
      plan.describe_start = [this] { return restarts_.describe_start(Clock::now()); };
  }

  /// Whether to run the job again, once all processes of the attempt have ended.
  bool goes_on_after(Cluster& attempt) {
    if (attempt.is_unwanted()) return false;
    if (restarts_.take_due()) {
      failed_at_ = Clock::now();
      left_out_.clear();
      return waits(attempt, attempt.clear_at());
    }
    const FailedAttempt* failure = attempt.failure();
    const bool is_restart = restarts_.count() > 0 && failure != nullptr && !attempt.has_started_ranks();
    // A mistake of the user is none on a host that had run ranks before: a folder may not be mounted yet.
    if (!is_restart || (failure->is_mistake && attempt.unreached().empty())) return false;
    return leaves_out(attempt.unreached()) || tries_again(attempt);
  }

  /// The plan of the next attempt. The port that launchers which join know may be taken until a process of
  /// an earlier attempt has ended, so this tries again. Null if a signal has ended the job meanwhile; throws
  /// PortTaken.
  std::optional<ClusterPlan> next_plan(const MakePlan& make_plan, Cluster& attempt) {
    for (bool told = false;; told = true) {
      try {
        return make_plan(restarts(), left_out_);
      } catch (const PortTaken& error) {
        if (seconds_left().count() <= 0) throw;
        if (!told) tell_of_next_try(error.what());
        if (!waits(attempt, Clock::now() + kPause)) return std::nullopt;
      }
    }
  }

  int restarts() const { return restarts_.count(); }
  const std::set<int>& left_out() const { return left_out_; }

 private:
  /// `unreached`: as numbered in the attempt.
  bool leaves_out(const std::vector<int>& unreached) {
    if (options_.min_nodes == 0 || unreached.empty()) return false;
    if (Clock::now() < failed_at_ + to_milliseconds(options_.host_wait_seconds)) return false;
    std::vector<int> kept;
    for (int node = 0; node < static_cast<int>(nodes_.size()); ++node) {
      if (!left_out_.contains(node)) kept.push_back(node);
    }
    if (std::ssize(kept) - std::ssize(unreached) < options_.min_nodes) return false;
    std::string names;
    for (const int node : unreached) {
      left_out_.insert(kept[node]);
      names += (names.empty() ? "" : ", ") + nodes_[kept[node]].host;
    }
    console_.notice("restart " + std::to_string(restarts()) + ": goes on without " + names +
                    " (--min_nodes " + std::to_string(options_.min_nodes) + ")");
    return true;
  }

  bool tries_again(Cluster& attempt) {
    if (seconds_left().count() <= 0) return false;
    tell_of_next_try("not all hosts can be reached");
    return waits(attempt, Clock::now() + kPause);
  }

  std::chrono::seconds seconds_left() const {
    return std::chrono::duration_cast<std::chrono::seconds>(
        failed_at_ + to_milliseconds(options_.timeout_seconds) - Clock::now());
  }

  void tell_of_next_try(const std::string& problem) {
    console_.notice("restart " + std::to_string(restarts()) + ": " + problem + ": tries again for " +
                    std::to_string(seconds_left().count()) + " s (--timeout)");
  }

  bool waits(Cluster& attempt, Clock::time_point end) {
    if (attempt.wait_until(end)) return true;
    console_.notice("not started again: the job is no longer wanted");
    return false;
  }

  const LaunchOptions& options_;
  const std::vector<Node> nodes_;  // of the whole job
  Console& console_;
  Restarts restarts_;
  Clock::time_point failed_at_;  // when the last attempt whose ranks had started was over
  std::set<int> left_out_;
};

}  // namespace

int run_attempts(const LaunchOptions& options, const MakePlan& make_plan, int argc, char** argv) {
  ClusterPlan plan = make_plan(0, {});
  // Ctrl-Z must not stop the launcher: a stopped launcher sends no heartbeats, so its agents would end their
  // ranks.
  std::signal(SIGTSTP, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Signals signals;
  Guardian guardian(argc, argv);
  Console console(sources_of(plan), options.quiet);
  if (options.verbose) {
    for (const StartCommand& command : plan.commands)
      console.notice(shell_line(command.arguments, plan.ticket));
  }
  Attempts attempts(options, plan.order.nodes, console);
  std::optional<HostKeepers> keepers;  // over all attempts
  if (options.max_restarts > 0 && options.hold_every > 0)
    keepers.emplace(plan.order.nodes, options.hold_every, console);
  std::optional<JoinedLaunchers> joined;  // likewise
  if (options.max_restarts > 0 && plan.listening_is_meeting_point) joined.emplace();
  while (true) {
    const bool is_whole = attempts.left_out().empty();
    if (keepers && !is_whole) {
      keepers->end();
      console.notice("--hold_every: nothing is held in memory while hosts are left out");
    }
    plan.version = ZERORUN_VERSION;
    attempts.watch(plan);
    Cluster attempt(std::move(plan), keepers && is_whole ? &*keepers : nullptr, joined ? &*joined : nullptr,
                    console, signals, guardian);
    const int code = attempt.run();
    if (!attempts.goes_on_after(attempt)) return code;
    std::optional<ClusterPlan> next = attempts.next_plan(make_plan, attempt);
    if (!next) return code;
    plan = std::move(*next);
    if (joined) joined->call_again();
    console.set_sources(sources_of(plan));
  }
}

}  // namespace zerorun::launcher
