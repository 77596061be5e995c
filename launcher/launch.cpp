#include "launcher/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iomanip>
#include <random>
#include <sstream>
#include <utility>

#include "base/cores.h"
#include "base/listening.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/job.h"
#include "launcher/machine.h"
#include "launcher/program_path.h"
#include "launcher/rank_environment.h"
#include "launcher/signals.h"
#include "launcher/slots.h"

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

/// How many ranks run, and on which devices.
struct RankDevices {
  bool gpus_wanted = true;
  int gpus = 0;  // number of GPUs that ranks may use
  int ranks = 1;
  std::string visible_devices;
};

std::string machine_line(const RankDevices& devices) {
  const std::string ranks = std::to_string(devices.ranks) + (devices.ranks == 1 ? " rank" : " ranks");
  if (devices.gpus > 0) {
    return std::to_string(devices.gpus) + (devices.gpus == 1 ? " GPU" : " GPUs") + " found for " + ranks;
  }
  return (devices.gpus_wanted ? "no GPU found: " : "") + ranks +
         (devices.ranks == 1 ? " runs on CPU" : " run on CPU");
}

RankDevices choose_devices(const LaunchOptions& options) {
  RankDevices devices;
  devices.gpus_wanted = (options.device.empty() ? variable("ZERORUN_DEVICE") : options.device) != "cpu";
  devices.gpus = devices.gpus_wanted ? count_gpus() : 0;
  std::vector<int> slots;
  if (!options.include.empty()) {
    slots = parse_include(options.include, this_hostname());
    check_slots(slots, devices.gpus);
  }
  const std::string users_list = devices.gpus > 0 ? variable("CUDA_VISIBLE_DEVICES") : "";
  if (options.ranks) {
    devices.ranks = *options.ranks;
  } else if (!slots.empty()) {
    devices.ranks = static_cast<int>(slots.size());
  } else {
    const size_t visible = users_list.empty() ? devices.gpus : split_devices(users_list).size();
    devices.ranks = std::max<int>(1, visible);
  }
  devices.visible_devices = choose_visible_devices(slots, users_list, devices.gpus, devices.ranks);
  return devices;
}

}  // namespace

int launch(const LaunchOptions& options, int argc, char** argv) {
  fill_standard_descriptors();
  JobPlan plan;
  plan.file = find_program(options.command.front());
  plan.arguments = options.command;
  plan.grace = options.grace;

  const RankDevices devices = choose_devices(options);
  JobEnvironment shared;
  shared.world_size = devices.ranks;
  shared.master_addr = options.master_addr;
  ListeningSocket listening = listen_on(options.master_addr, options.master_port.value_or(0));
  shared.master_port = listening.port;
  shared.listening_fd = listening.fd.get();
  shared.token = random_token();
  shared.timeout_seconds = options.timeout_seconds;
  shared.device = options.device;
  shared.comm = options.comm;
  shared.threads_per_rank = std::max(1, count_usable_cores() / devices.ranks);
  shared.visible_devices = devices.visible_devices;
  shared.terminal = ::isatty(STDOUT_FILENO) == 1;
  const std::vector<std::string> inherited = inherited_environment();
  for (int rank = 0; rank < devices.ranks; ++rank) {
    plan.environments.push_back(rank_environment(inherited, shared, rank));
  }

  plan.listening = std::move(listening.fd);

  // Orphans of ranks become children of the launcher instead of process 1. The launcher ends and reaps them,
  // because process 1 of a container may not.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Signals signals;
  Guardian guardian(argc, argv);
  Console console(devices.ranks);
  console.notice(machine_line(devices));
  return Job(std::move(plan), console, signals, guardian).run();
}

}  // namespace zerorun
