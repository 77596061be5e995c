#include "launcher/hosts/host_ranks.h"

#include <sys/prctl.h>

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/listening.h"
#include "launcher/guardian.h"
#include "launcher/hosts/agent.h"
#include "launcher/hosts/gpu_question.h"
#include "launcher/hosts/node_job.h"
#include "launcher/signals.h"

namespace zerorun::launcher {
namespace {

ListeningSocket open_port(const NodeOrder& order) {
  // Not taken if the variable is left over from another process.
  UniqueFd inherited = take_inherited_socket(*order.port, kMeetingVariable);
  if (inherited.is_open()) return {std::move(inherited), *order.port, {}};
  return open_meeting_point("", *order.port, false);
}

}  // namespace

HostRun run_ranks(AgentLink& link, const NodeOrder& order, JobOutput* console,
                  AgentLink::Clock::time_point deadline, int argc, char** argv) {
  const int first_rank = Placement(order.nodes).first_rank(order.node);
  const ThisMachine machine = inspect_machine(order.device);
  check_gpus(order, machine, inherited_by_ranks(order), [&] { link.keep_alive(); });
  ListeningSocket listening;
  if (order.port) {
    link.wait_for(FrameType::open, deadline, "word that all hosts have connected");
    listening = open_port(order);
    link.send(FrameType::port, encode(MeetingPoint{"", listening.port}));
  }
  auto point =
      decode<MeetingPoint>(link.wait_for(FrameType::start, deadline, "the address where ranks meet"));
  if (order.keeper.port == 0) point.held_memory.clear();  // not meant for a launcher that joins
  JobPlan plan = plan_node(order, point, machine, std::move(listening.fd));

  plan.reports_failure = console != nullptr;
  if (const int restarts = order.logs.attempt; console != nullptr && restarts > 0) {
    plan.describe_start = [restarts] {
      return "restart " + std::to_string(restarts) + ": the ranks of this host have started again";
    };
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of ranks become children of this process
  Signals signals;
  Guardian guardian(argc, argv, console != nullptr ? Guarded::launcher : Guarded::agent);
  LinkOutput remote(link, first_rank);
  JobOutput& output = console != nullptr ? *console : static_cast<JobOutput&>(remote);
  Job job(std::move(plan), output, signals, guardian, &link);
  const int exit_code = job.run();
  const bool ended_by_others = exit_code == 0 && job.was_told_to_end();
  return {.result = {ended_by_others ? 1 : exit_code, job.interrupted_by().value_or(0)},
          .has_started = true,
          .ended_by_others = ended_by_others,
          .is_unwanted = job.is_unwanted()};
}

HostRun or_trouble(AgentLink& link, JobOutput* console, const std::function<HostRun()>& run) {
  AgentTrouble trouble;
  try {
    return run();
  } catch (const UserError& error) {
    trouble = {error.what(), true};
  } catch (const std::exception& error) {
    trouble = {error.what(), false};
  }
  link.send(FrameType::trouble, encode(trouble));
  if (console != nullptr) console->notice(trouble.message);
  return {.result = {trouble.user_mistake ? 2 : 1, 0}};
}

}  // namespace zerorun::launcher
