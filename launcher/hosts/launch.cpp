#include "launcher/hosts/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/held_memory.h"
#include "base/hexadecimal.h"
#include "base/listening.h"
#include "base/random_bits.h"
#include "base/route.h"
#include "base/unique_fd.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/cluster_attempts.h"
#include "launcher/hosts/dry_run.h"
#include "launcher/hosts/forwarded_environment.h"
#include "launcher/hosts/gpu_question.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/job_part.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/joining.h"
#include "launcher/hosts/node_job.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "launcher/machine.h"
#include "launcher/pid_file.h"
#include "launcher/program_path.h"
#include "launcher/rank_labels.h"
#include "launcher/restarts.h"
#include "launcher/signals.h"

namespace zerorun::launcher {
namespace {

/// Opens stdin, stdout and stderr if they are closed: otherwise one of our pipes would get number 0, 1 or 2.
void fill_standard_descriptors() {
  for (int fd : {0, 1, 2}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    [[maybe_unused]] int lowest_free = ::open("/dev/null", O_RDWR);  // equals fd
  }
}

std::string machine_line(const LaunchOptions& options, int gpus, int count) {
  const std::string ranks = std::to_string(count) + (count == 1 ? " rank" : " ranks");
  if (gpus > 0) return std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") + " found for " + ranks;
  return (gpus_wanted(options.device) ? "no GPU found: " : "") + ranks +
         (count == 1 ? " runs on CPU" : " run on CPU");
}

std::string time_text() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::strftime(text, sizeof text, "%Y%m%d%H%M%S", &local);
  return text;
}

// The job's secret if the user starts a launcher on each host. Each launcher finds the same text, without a
// connection to the others.
std::string shared_secret(const LaunchOptions& options, const Endpoint& endpoint) {
  const std::string job = variable("ZERORUN_JOB");
  if (!job.empty()) return job;
  if (!options.rdzv_id.empty()) return options.rdzv_id;
  return "port-" + std::to_string(endpoint.port);  // no address: hosts may know it by different names
}

NodeOrder make_order(const LaunchOptions& options, const JobPlacement& place,
                     std::vector<std::string> arguments) {
  NodeOrder order;
  order.nodes = place.placement.nodes();
  order.node = place.node.value_or(0);
  order.slots_named = names_slots(options);
  order.arguments = std::move(arguments);
  order.venv_script = options.venv_script;
  order.device = options.device;
  order.comm = options.comm;
  order.timeout_seconds = options.timeout_seconds;
  order.terminal = ::isatty(STDOUT_FILENO) == 1;
  // Ranks on other hosts have another folder.
  if (!options.timeline.empty()) order.timeline = std::filesystem::absolute(options.timeline);
  order.timeline_steps = options.timeline_steps;
  order.grace = options.grace;
  order.failure_grace = options.failure_grace;
  const double hung_after = options.hung_after_seconds.value_or(options.timeout_seconds);
  order.hung_after = std::chrono::milliseconds(std::max(1L, std::lround(hung_after * 1000)));
  order.logs = options.logs;
  order.logs.run = time_text() + "-" + random_token().substr(0, 8);  // jobs may start in the same second
  order.bind_cores = options.bind_cores_to_rank;
  order.bind_core_list = options.bind_core_list;
  return order;
}

// Adds the working folder and the forwarded variables, for ranks on other hosts.
void add_surroundings(NodeOrder& order) {
  order.folder = std::filesystem::current_path();
  order.variables = merge_variables(forwarded_variables(inherited_environment()), read_environment_files());
}

// The plan of the next attempt to run the job. It has a port, a secret, boards and log files of its own, so
// that no process of an earlier one can join. `held`: the text of HeldMemory. `claim`: keeps other jobs from
// the port while it is open.
JobPlan plan_attempt(const LaunchOptions& options, NodeOrder& order, const ThisMachine& machine,
                     const std::string& held, UniqueFd& claim) {
  claim.reset();  // the user may have chosen the port
  MeetingPoint point{options.master_addr.empty() ? kThisHost : options.master_addr,
                     options.master_port.value_or(0), held};
  ListeningSocket listening = open_meeting_point(point.address, point.port, true);
  claim = std::move(listening.claim);
  point.port = listening.port;
  order.token = random_token();
  return plan_node(order, point, machine, std::move(listening.fd));
}

int run_alone(const LaunchOptions& options, NodeOrder order, int argc, char** argv) {
  HeldMemory held;  // stays over all attempts
  const bool holds = options.max_restarts > 0 && options.hold_every > 0;
  if (holds)
    held = HeldMemory(static_cast<int>(std::ssize(order.nodes[order.node].slots)),
                      in_hexadecimal(random_bits()));
  const std::string held_text = held.text(options.hold_every);
  const ThisMachine machine = inspect_machine(options.device);
  const int usable_gpus = check_gpus(order, machine, inherited_by_ranks(order));
  UniqueFd claim;
  JobPlan plan = plan_attempt(options, order, machine, held_text, claim);
  const int ranks = static_cast<int>(plan.environments.size());

  // Orphans of ranks become children of the launcher, not of process 1. The launcher ends and reaps them,
  // because process 1 of a container does not always reap orphans.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Signals signals;
  Guardian guardian(argc, argv);
  Console console(rank_labels(order.nodes), options.quiet);
  console.information(machine_line(options, usable_gpus, ranks));
  if (holds && held_text.empty())
    console.notice("--hold_every has no effect: the system has no memory files for so many ranks");
  Restarts restarts(options.max_restarts);
  while (true) {
    plan.judge = [&](const FailedAttempt& attempt) { return restarts.judge(attempt); };
    int code = 0;
    {
      Job job(std::move(plan), console, signals, guardian);
      code = job.run();
      if (!restarts.take_due() || job.is_unwanted()) return code;
    }
    order.logs.attempt = restarts.count();
    plan = plan_attempt(options, order, machine, held_text, claim);
    plan.describe_start = [&] { return restarts.describe_start(AttemptTimes::Clock::now()); };
  }
}

// The path of zerorun as it was at the start: the file may be replaced while the job runs.
const std::string& own_program() {
  static const std::string path = std::filesystem::read_symlink("/proc/self/exe");
  return path;
}

// The addresses by which `hosts` may reach this host.
std::vector<std::string> own_addresses(const std::vector<std::string>& hosts) {
  std::set<std::string> addresses;
  for (const std::string& host : hosts) {
    try {
      const std::string local = route_to(host.substr(host.find('@') + 1)).local;
      if (!is_loopback(local)) addresses.insert(local);
    } catch (const CommError&) {
      continue;  // only ssh's configuration knows the name: the agent there takes our address from sshd
    }
  }
  addresses.insert(this_hostname());
  return {addresses.begin(), addresses.end()};
}

// The plan of an attempt. It has ports and secrets of its own, so that no process of an earlier one can join.
ClusterPlan plan_starting(const LaunchOptions& options, const JobPlacement& whole, NodeOrder order,
                          int restarts, const std::set<int>& left_out) {
  const JobPlacement place = without(whole, left_out);
  order.nodes = place.placement.nodes();
  if (!left_out.empty()) order.full_world_size = whole.placement.world_size();
  ClusterPlan plan;
  add_surroundings(order);
  order.token = random_token();
  order.logs.attempt = restarts;
  plan.order = std::move(order);
  if (!left_out.contains(0)) plan.master_addr = options.master_addr;  // else it is that of a lost host
  plan.master_port = options.master_port.value_or(0);
  plan.listening = listen_on("", 0);
  plan.ticket = random_token();
  plan.own_program = own_program();

  std::vector<std::string> hosts;
  std::vector<int> remote;
  for (const Node& node : place.placement.nodes()) {
    const int number = static_cast<int>(hosts.size());
    if (number != place.node) remote.push_back(number);
    hosts.push_back(node.host);
  }
  const StartPlan start{options.starter,      options.launcher_args, options.ssh_port, plan.own_program,
                        own_addresses(hosts), plan.listening.port,   plan.ticket};
  plan.commands = start_commands(start, hosts, remote);
  if (options.starter == Starter::ssh) plan.own_node = place.node;
  return plan;
}

// The plan of an attempt. The port is always the same, which the other launchers know, and the secret of the
// ranks is another one after each restart. `claim`: as in plan_attempt().
ClusterPlan plan_meeting(const LaunchOptions& options, const Endpoint& endpoint, NodeOrder order,
                         int restarts, UniqueFd& claim) {
  claim.reset();
  ClusterPlan plan;
  plan.layout = describe_layout(order.nodes, options.max_restarts);
  plan.order = std::move(order);
  plan.ticket = shared_secret(options, endpoint);
  plan.order.token = restarts == 0 ? plan.ticket : random_token();
  plan.order.logs.attempt = restarts;
  plan.master_addr = endpoint.address;
  plan.listening = listen_as_first(is_loopback(endpoint.address) ? endpoint.address : "", endpoint.port);
  claim = std::move(plan.listening.claim);
  plan.listening_is_meeting_point = true;
  plan.own_node = 0;
  if (is_loopback(endpoint.address)) plan.own_address = endpoint.address;
  plan.own_program = own_program();
  return plan;
}

// Absent if the port is taken, usually by another launcher on this machine. Then this launcher joins the
// other. `taken`: gets the reason.
std::optional<ClusterPlan> plan_first(const LaunchOptions& options, const Endpoint& endpoint,
                                      const NodeOrder& order, UniqueFd& claim, std::string& taken) {
  try {
    return plan_meeting(options, endpoint, order, 0, claim);
  } catch (const PortTaken& error) {
    if (options.node_rank || order.nodes.size() == 1) throw;
    taken = error.what();
    return std::nullopt;
  }
}

// Ranks of this host connect to the address too. It may become known late, so this is no error.
void warn_of_unknown(const Endpoint& endpoint) {
  try {
    route_to(endpoint.address);
  } catch (const CommError& error) {
    std::fprintf(stderr,
                 "zerorun: %s; ranks meet there: give an address of this host that all hosts know "
                 "(--master_addr, --rdzv_endpoint)\n",
                 error.what());
  }
}

// Absent if this launcher joins another one: see plan_first().
std::optional<int> run_first(const LaunchOptions& options, const Endpoint& endpoint, const NodeOrder& order,
                             std::string& taken, int argc, char** argv) {
  UniqueFd claim;
  std::optional<ClusterPlan> plan = plan_first(options, endpoint, order, claim, taken);
  if (!plan) return std::nullopt;
  warn_of_unknown(endpoint);
  const MakePlan make_plan = [&](int restarts, const std::set<int>&) {
    return restarts == 0 ? std::move(*plan) : plan_meeting(options, endpoint, order, restarts, claim);
  };
  return run_attempts(options, make_plan, argc, argv);
}

// `taken`: why this launcher, which has the endpoint's address, is not the first one; else empty.
int run_joining(const LaunchOptions& options, const Endpoint& endpoint, const NodeOrder& order,
                const std::string& taken, int argc, char** argv) {
  JoinPlan plan;
  plan.addresses = {endpoint.address};
  plan.port = endpoint.port;
  plan.ticket = shared_secret(options, endpoint);
  plan.hello = {ZERORUN_VERSION, options.node_rank.value_or(-1), this_hostname(),
                describe_layout(order.nodes, options.max_restarts)};
  plan.order = order;
  plan.order.token = plan.ticket;
  plan.timeout = std::chrono::milliseconds(std::llround(options.timeout_seconds * 1000));
  plan.max_restarts = options.max_restarts;
  plan.quiet = options.quiet;
  plan.reason = taken;
  std::signal(SIGTSTP, SIG_IGN);  // a stopped launcher could not send heartbeats
  return join_job(plan, argc, argv);
}

// Prints the command of each rank, without values that are chosen when the job starts, such as ports and
// secrets.
int print_plan(const LaunchOptions& options, Part part, const Endpoint& endpoint, NodeOrder order,
               bool here) {
  const ThisMachine machine = inspect_machine(options.device);
  MeetingPoint point{options.master_addr, options.master_port.value_or(0)};
  if (part == Part::first || part == Part::joins) point = {endpoint.address, endpoint.port};
  if (part == Part::alone && point.address.empty()) point.address = kThisHost;
  if (part == Part::starts) add_surroundings(order);
  const JobEnvironment job = node_environment(order, point, machine, -1);
  const std::string text = describe_job(job, here ? order.node : -1, inherited_environment(), order,
                                        find_mesh(order.arguments, job.placement.world_size()));
  std::fputs(text.c_str(), stdout);  // main() flushes it
  return 0;
}

}  // namespace

int launch(const LaunchOptions& given, int argc, char** argv) {
  fill_standard_descriptors();
  LaunchOptions options = given;
  options.hostfile = choose_hostfile(given);
  if (options.hostfile != given.hostfile && !options.quiet) {
    std::fprintf(stderr,
                 "zerorun: the hosts are those of %s, as with DeepSpeed (--standalone: this host alone)\n",
                 options.hostfile.c_str());
  }
  // --venv_script makes its own `python3` the first in PATH.
  const std::string python =
      options.venv_script.empty() ? python_of(std::filesystem::read_symlink("/proc/self/exe")) : "python3";
  std::vector<std::string> arguments =
      options.as_deepspeed ? arguments_as_deepspeed(options.command, options.module, options.no_python,
                                                    options.pass_local_rank, python)
                           : program_arguments(options.command, options.module, options.no_python, python);
  std::optional<std::vector<Host>> hosts;
  if (!options.hostfile.empty()) hosts = read_hostfile(options.hostfile);
  const JobPlacement place = place_job(options, hosts, inspect_machine(options.device));
  const bool joined = options.node_rank || !options.rdzv_endpoint.empty();
  const Endpoint endpoint = joined ? choose_endpoint(options, place.placement) : Endpoint{};
  const Part part = choose_part(options, place, endpoint);
  check_restarts(options, part, static_cast<int>(std::ssize(place.placement.nodes())));
  const bool here = part != Part::starts || place.node.has_value();
  if (here && options.venv_script.empty()) {
    const std::string program = find_program(arguments.front());
    // Other hosts may have another PATH, so they get the path of the file that this host has found.
    if (part == Part::starts && arguments.front().find('/') == std::string::npos) arguments.front() = program;
  }
  NodeOrder order = make_order(options, place, std::move(arguments));
  if (options.dry_run) return print_plan(options, part, endpoint, std::move(order), here);

  std::string taken;
  std::optional<PidFile> pid_file;
  if (options.save_pid) pid_file.emplace("/tmp");
  switch (part) {
    case Part::starts:
      return run_attempts(
          options,
          [&](int restarts, const std::set<int>& left_out) {
            return plan_starting(options, place, order, restarts, left_out);
          },
          argc, argv);
    case Part::first:
      if (const std::optional<int> code = run_first(options, endpoint, order, taken, argc, argv))
        return *code;
      [[fallthrough]];
    case Part::joins:
      return run_joining(options, endpoint, order, taken, argc, argv);
    case Part::alone:
      break;
  }
  return run_alone(options, std::move(order), argc, argv);
}

}  // namespace zerorun::launcher
