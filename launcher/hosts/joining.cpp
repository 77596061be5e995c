#include "launcher/hosts/joining.h"

#include <cstdio>
#include <thread>

#include "base/error.h"
#include "base/printable.h"
#include "base/seal.h"
#include "launcher/console.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/host_ranks.h"
#include "launcher/rank_labels.h"

namespace zerorun::launcher {
namespace {

using Clock = AgentLink::Clock;

// How long a launcher that has lost the first one waits before it tries to join again.
constexpr std::chrono::milliseconds kPauseAfterLoss(500);

class Joining {
 public:
  Joining(const JoinPlan& plan, int argc, char** argv)
      : plan_(plan), ticket_(plan.ticket), argc_(argc), argv_(argv), deadline_(Clock::now() + plan.timeout) {
    if (!plan.reason.empty()) reason_ = "; this launcher joins because it " + plan.reason;
  }

  int run() {
    while (true) {
      AgentLink link{FrameSocket(connect_to_first())};
      const HostRun run = take_part(link);
      const bool is_over = plan_.max_restarts == 0 || run.is_unwanted;
      if (is_over || !(link.is_called_again() || link.is_lost())) {
        if (link.is_lost()) return 1;
        const NodeResult& result = run.result;
        return result.interrupted_by != 0 ? 128 + result.interrupted_by : result.exit_code;
      }
      if (link.is_called_again() || run.has_started) deadline_ = Clock::now() + plan_.timeout;
      if (link.is_lost()) wait_after_loss();
    }
  }

 private:
  long seconds_left() const {
    return std::chrono::ceil<std::chrono::seconds>(deadline_ - Clock::now()).count();
  }

  // A name may become known late, when a scheduler starts the first launcher's host.
  UniqueFd connect_to_first() const {
    const auto tell = [&](const std::string& problem) {
      const std::string text = problem + reason_ + "; this launcher tries again for " +
                               std::to_string(seconds_left()) + " s (--timeout)";
      std::fprintf(stderr, "zerorun: %s\n", printable(text).c_str());
    };
    try {
      return connect_to_launcher(
          plan_.addresses, plan_.port, ticket_, deadline_, [] { return true; }, tell);
    } catch (const Error& error) {
      throw Error(error.what() + reason_);
    }
  }

  // Returns when the ranks of this host have ended, and it is known whether this launcher joins again.
  HostRun take_part(AgentLink& link) {
    link.send(FrameType::hello, encode(plan_.hello));
    NodeOrder order;
    try {
      order = order_for_this_host(
          plan_, decode<NodeOrder>(link.wait_for(FrameType::order, deadline_, "the order for this host")));
    } catch (const UserError&) {
      throw;
    } catch (const Error&) {
      if (plan_.max_restarts > 0 && (link.is_called_again() || link.is_lost())) return {};
      throw;
    }
    order.logs.run = name_of_run(order.logs);
    Console console(rank_labels(order.nodes, order.node), plan_.quiet);
    const HostRun run =
        or_trouble(link, &console, [&] { return run_ranks(link, order, &console, deadline_, argc_, argv_); });
    if (plan_.max_restarts == 0 || run.is_unwanted) {
      link.finish(run.result);
    } else {
      link.wait_for_word(run.result);
    }
    tell_of_end(console, run, link);
    return run;
  }

  // A first launcher that has been started anew counts from 0 again, and ranks write no log file twice.
  std::string name_of_run(const LogOptions& logs) {
    if (logs.attempt == 0) ++starts_;
    return starts_ > 1 ? logs.run + "-" + std::to_string(starts_) : logs.run;
  }

  void tell_of_end(Console& console, const HostRun& run, const AgentLink& link) const {
    const bool restarts = plan_.max_restarts > 0;
    if (restarts && link.is_lost()) return;  // which has been told
    if (run.ended_by_others) {
      console.notice(
          (link.is_called_again() ? "the ranks of this host have" : "the job has") +
          std::string(" ended because of a failure on another host, which the first launcher reports"));
    } else if (restarts && !link.is_called_again() && !run.is_unwanted && run.result.exit_code != 0) {
      console.notice("the job is not started again, as the first launcher reports");
    }
    console.write_some();
  }

  void wait_after_loss() {
    const std::string loss = "this launcher has lost the first one";
    if (seconds_left() <= 0)
      throw Error(loss + ", which has not started the job again within --timeout (" +
                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(plan_.timeout).count()) +
                  " s)");
    reason_ = "; " + loss + ", and waits until --timeout for it to start the job again";
    std::fprintf(stderr, "zerorun: %s, and tries for %ld s (--timeout) to join it again\n", loss.c_str(),
                 seconds_left());
    std::this_thread::sleep_for(kPauseAfterLoss);
  }

  const JoinPlan& plan_;
  const Seal ticket_;
  int argc_;
  char** argv_;
  Clock::time_point deadline_;  // until the ranks of this host start
  std::string reason_;          // why this launcher connects, for errors
  int starts_ = 0;              // of the job, as this launcher knows
};

}  // namespace

NodeOrder order_for_this_host(const JoinPlan& plan, const NodeOrder& first) {
  NodeOrder order = plan.order;
  order.node = first.node;
  // Node 0 is the first launcher itself.
  const bool numbered = plan.hello.node >= 0;
  const int lowest = numbered ? plan.hello.node : 1;
  const int highest = numbered ? plan.hello.node : static_cast<int>(order.nodes.size()) - 1;
  if (order.node < lowest || order.node > highest) {
    throw Error("the launcher of node 0 sent the number " + std::to_string(order.node) +
                " for this node: expected " + std::to_string(lowest) +
                (numbered ? ", that of --node_rank" : " to " + std::to_string(highest)));
  }
  const int restarts = first.logs.attempt;
  if (restarts == 0) return order;
  if (restarts > plan.max_restarts) {
    throw Error("the launcher of node 0 sent the number " + std::to_string(restarts) +
                " for this restart: expected at most " + std::to_string(plan.max_restarts) +
                " (--max_restarts)");
  }
  if (!is_token(first.token))
    throw Error("the launcher of node 0 sent a secret for the ranks that is none: expected 32 digits");
  order.logs.attempt = restarts;
  order.token = first.token;
  return order;
}

int join_job(const JoinPlan& plan, int argc, char** argv) {
  return Joining(plan, argc, argv).run();
}

}  // namespace zerorun::launcher
