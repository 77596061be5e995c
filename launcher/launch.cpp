#include "launcher/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "base/listening.h"
#include "launcher/console.h"
#include "launcher/core_binding.h"
#include "launcher/dry_run.h"
#include "launcher/guardian.h"
#include "launcher/hostfile.h"
#include "launcher/job.h"
#include "launcher/job_placement.h"
#include "launcher/machine.h"
#include "launcher/processor_cores.h"
#include "launcher/program_path.h"
#include "launcher/rank_environment.h"
#include "launcher/signals.h"

extern char** environ;

namespace zerorun {
namespace {

/// Opens stdin, stdout and stderr if they are closed: otherwise one of our pipes would get such a number.
void fill_standard_descriptors() {
  for (int fd : {0, 1, 2}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    [[maybe_unused]] int lowest_free = ::open("/dev/null", O_RDWR);  // equals fd
  }
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry && *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

/// A secret of 128 bits that no process outside the job can guess.
std::string random_token() {
  std::random_device random;
  std::ostringstream text;
  for (int word = 0; word < 4; ++word) text << std::hex << std::setw(8) << std::setfill('0') << random();
  return text.str();
}

bool gpus_wanted(const LaunchOptions& options) {
  return (options.device.empty() ? variable("ZERORUN_DEVICE") : options.device) != "cpu";
}

ThisMachine inspect_machine(const LaunchOptions& options) {
  return {this_hostname(), gpus_wanted(options) ? count_gpus() : 0, variable("CUDA_VISIBLE_DEVICES")};
}

std::string machine_line(const LaunchOptions& options, int gpus, int count) {
  const std::string ranks = std::to_string(count) + (count == 1 ? " rank" : " ranks");
  if (gpus > 0) return std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") + " found for " + ranks;
  return (gpus_wanted(options) ? "no GPU found: " : "") + ranks +
         (count == 1 ? " runs on CPU" : " run on CPU");
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::string choose_master_address(const LaunchOptions& options, const Placement& placement) {
  if (!options.master_addr.empty()) return options.master_addr;
  if (placement.nodes().size() == 1) return "127.0.0.1";
  std::string host = placement.nodes().front().host;
  host = host.substr(host.find('@') + 1);  // without the user's name; npos + 1 is 0
  if (options.hostfile.empty() || is_loopback(host)) {
    throw UserError("give the address of rank 0's host, which the other hosts connect to: --master_addr");
  }
  return host;
}

// Opens the socket where ranks meet, if rank 0 runs on this host, and completes `job` with it.
UniqueFd open_meeting_point(const LaunchOptions& options, int node, JobEnvironment& job) {
  const bool one_host = job.placement.nodes().size() == 1;
  job.master_port = options.master_port.value_or(one_host ? 0 : kDefaultPort);
  if (node != 0 || options.dry_run) return {};
  // The name of a host may have another address on this host than on the others.
  const bool all_interfaces = !one_host && !is_loopback(job.master_addr);
  ListeningSocket listening = listen_on(all_interfaces ? "" : job.master_addr, job.master_port);
  job.master_port = listening.port;
  job.listening_fd = listening.fd.get();
  return std::move(listening.fd);
}

std::vector<CoreBinding> bindings_of_ranks(const LaunchOptions& options, int ranks) {
  if (!options.bind_cores_to_rank) return {};
  refuse_other_bindings(inherited_environment());
  return bind_cores(read_host_cores(), ranks, options.bind_core_list, cpu_quota());
}

// The launchers of several hosts must know the same text without talking to each other.
std::string choose_token(const LaunchOptions& options, const JobEnvironment& job) {
  if (!options.node_rank) return random_token();
  const std::string shared = variable("ZERORUN_JOB");
  return shared.empty() ? job.master_addr + ":" + std::to_string(job.master_port) : shared;
}

}  // namespace

int launch(const LaunchOptions& options, int argc, char** argv) {
  fill_standard_descriptors();
  const std::vector<std::string> arguments =
      program_arguments(options.command, options.module, options.no_python);
  const std::string file = find_program(arguments.front());
  std::optional<std::vector<Host>> hosts;
  if (!options.hostfile.empty()) hosts = read_hostfile(options.hostfile);
  const ThisMachine machine = inspect_machine(options);
  const JobPlacement place = place_job(options, hosts, machine);

  JobEnvironment job;
  job.placement = place.placement;
  const int ranks = job.placement.local_world_size(place.node);
  job.master_addr = choose_master_address(options, job.placement);
  job.timeout_seconds = options.timeout_seconds;
  job.device = options.device;
  job.comm = options.comm;
  job.threads_per_rank = std::max(1, count_usable_cores() / ranks);
  job.visible_devices = place.visible_devices;
  job.terminal = ::isatty(STDOUT_FILENO) == 1;
  job.bindings = bindings_of_ranks(options, ranks);
  UniqueFd listening = open_meeting_point(options, place.node, job);
  job.token = choose_token(options, job);
  const std::vector<std::string> inherited = inherited_environment();
  if (options.dry_run) {
    std::fputs(describe_job(job, place.node, inherited, arguments).c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }

  JobPlan plan;
  plan.file = file;
  plan.arguments = arguments;
  plan.grace = options.grace;
  plan.bindings = job.bindings;
  plan.first_rank = job.placement.first_rank(place.node);
  for (int rank = plan.first_rank; rank < plan.first_rank + ranks; ++rank) {
    plan.environments.push_back(rank_environment(inherited, job, rank));
  }
  plan.listening = std::move(listening);

  // Orphans of ranks become children of the launcher instead of process 1. The launcher ends and reaps them,
  // because process 1 of a container may not.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Signals signals;
  Guardian guardian(argc, argv);
  Console console(ranks, plan.first_rank);
  console.notice(machine_line(options, machine.gpus, ranks));
  return Job(std::move(plan), console, signals, guardian).run();
}

}  // namespace zerorun
