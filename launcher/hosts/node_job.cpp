#include "launcher/hosts/node_job.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "base/gpu_presence.h"
#include "base/route.h"
#include "launcher/core_binding.h"
#include "launcher/hosts/agent.h"
#include "launcher/machine.h"
#include "launcher/processor_cores.h"
#include "launcher/program_path.h"

extern char** environ;

namespace zerorun::launcher {
namespace {

constexpr char kShell[] = "/bin/bash";

void check_slots(const NodeOrder& order, const std::vector<int>& slots, const ThisMachine& machine) {
  const bool several = order.nodes.size() > 1;
  if (machine.gpus == 0 || !(several || order.slots_named) || slots.back() < machine.gpus) return;
  throw UserError("slot " + std::to_string(slots.back()) + " does not exist: this machine has " +
                  std::to_string(machine.gpus) + (machine.gpus == 1 ? " GPU" : " GPUs") +
                  ", numbered from 0");
}

}  // namespace

bool gpus_wanted(const std::string& device) {
  return (device.empty() ? variable("ZERORUN_DEVICE") : device) != "cpu";
}

ThisMachine inspect_machine(const std::string& device) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool uses_gpus = gpus_wanted(device) && !hides_all_gpus(visible);
  return {this_hostname(), uses_gpus ? count_gpu_files() : 0, visible != nullptr ? visible : "",
          static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))), addresses_of_this_host()};
}

ListeningSocket open_meeting_point(const std::string& address, int port, bool one_host) {
  // With several hosts use all interfaces: other hosts may resolve `address` differently than this host.
  return reserve_port(one_host || is_loopback(address) ? address : "", port);
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const bool internal = text.starts_with(std::string(kTicketVariable) + "=") ||
                          text.starts_with(std::string(kMeetingVariable) + "=");
    if (!internal) entries.emplace_back(text);
  }
  return entries;
}

std::vector<std::string> inherited_by_ranks(const NodeOrder& order) {
  std::vector<std::string> inherited = inherited_environment();
  for (const auto& [name, value] : order.variables) {
    std::erase_if(inherited,
                  [&name = name](const std::string& entry) { return entry.starts_with(name + "="); });
    inherited.push_back(name + "=" + value);
  }
  return inherited;
}

JobEnvironment node_environment(const NodeOrder& order, const MeetingPoint& point, const ThisMachine& machine,
                                int listening_fd) {
  JobEnvironment job;
  job.placement = Placement(order.nodes);
  const std::vector<int>& slots = order.nodes[order.node].slots;
  check_slots(order, slots, machine);
  job.master_addr = point.address;
  job.master_port = point.port;
  job.listening_fd = listening_fd;
  job.token = order.token;
  job.timeout_seconds = order.timeout_seconds;
  job.device = order.device;
  job.comm = order.comm;
  job.threads_per_rank = std::max(1, count_usable_cores() / static_cast<int>(slots.size()));
  job.visible_devices = visible_devices(order.slots_named, slots, machine);
  job.terminal = order.terminal;
  job.restarts = order.logs.attempt;
  job.held_memory = point.held_memory;
  job.full_world_size = order.full_world_size;
  job.timeline = order.timeline;
  job.timeline_steps = order.timeline_steps;
  if (order.bind_cores) {
    refuse_other_bindings(inherited_environment());
    job.bindings =
        bind_cores(read_host_cores(), static_cast<int>(slots.size()), order.bind_core_list, cpu_quota());
  }
  return job;
}

JobPlan plan_node(const NodeOrder& order, const MeetingPoint& point, const ThisMachine& machine,
                  UniqueFd listening) {
  if (!order.folder.empty() && ::chdir(order.folder.c_str()) != 0) {
    throw UserError("the launcher's folder " + order.folder + " cannot be entered on this host: " +
                    std::strerror(errno) + ": create it, or start zerorun from a folder that all hosts have");
  }
  JobEnvironment job = node_environment(order, point, machine, listening.get());

  JobPlan plan;
  plan.board = JoinBoard(job.placement.local_world_size(order.node));
  job.board = plan.board.path();
  plan.activity = ActivityBoard(job.placement.local_world_size(order.node));
  job.activity_board = plan.activity.path();
  plan.memory = MemoryBoard(job.placement.local_world_size(order.node));
  job.memory_board = plan.memory.path();
  plan.run_log = RunLogBoard(order.node == 0);
  job.run_log_board = plan.run_log.path();
  plan.timelines = TimelineRings(job.placement.local_world_size(order.node));
  for (int rank = 0; rank < job.placement.local_world_size(order.node); ++rank)
    job.timeline_rings.push_back(plan.timelines.path(rank));
  plan.arguments = order.arguments;
  if (order.venv_script.empty()) {
    plan.file = find_program(plan.arguments.front());
  } else {
    // The program's name is looked up after the script has changed PATH.
    plan.file = kShell;
    plan.arguments.insert(plan.arguments.begin(),
                          {kShell, "-c", R"(. "$0" && exec "$@")", order.venv_script});
  }
  plan.bindings = job.bindings;
  plan.grace = order.grace;
  plan.failure_grace = order.failure_grace;
  plan.timeout = std::chrono::milliseconds(std::llround(order.timeout_seconds * 1000));
  plan.hung_after = order.hung_after;
  plan.first_rank = job.placement.first_rank(order.node);
  plan.world_size = static_cast<uint32_t>(job.placement.world_size());
  const int ranks = job.placement.local_world_size(order.node);
  const std::vector<std::string> inherited = inherited_by_ranks(order);
  for (int rank = plan.first_rank; rank < plan.first_rank + ranks; ++rank) {
    plan.environments.push_back(rank_environment(inherited, job, rank));
  }
  plan.listening = std::move(listening);
  const std::string temporary = variable("TMPDIR");
  plan.folders = {".", temporary.empty() ? "/tmp" : temporary, order.logs.folder, order.logs.one_file_folder};
  const bool several_hosts = order.nodes.size() > 1;
  plan.logs =
      RankLogs(order.logs, plan.first_rank, ranks, several_hosts ? std::optional(order.node) : std::nullopt);
  return plan;
}

}  // namespace zerorun::launcher
