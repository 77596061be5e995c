// Decides where the ranks of a job run, from the options, the hostfile and this machine. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/launch_options.h"
#include "launcher/placement.h"

namespace zerorun::launcher {

/// The facts about the launcher's machine on which the placement depends.
struct ThisMachine {
  std::string hostname;
  int gpus = 0;                             // GPUs that ranks may use; 0 if they train on the CPU
  std::string visible_devices;              // CUDA_VISIBLE_DEVICES; empty if not set
  int processors = 1;                       // logical ones that are online
  std::vector<std::string> addresses = {};  // of its network interfaces, in numbers
};

struct JobPlacement {
  Placement placement;
  std::optional<int> node;  // this machine's index among the placement's nodes; absent: it runs no rank
};

/// Whether --include or --exclude chooses the slots.
bool names_slots(const LaunchOptions& options);

/// CUDA_VISIBLE_DEVICES of the ranks on `slots` of `machine`; empty: keep the user's.
std::string visible_devices(bool slots_named, const std::vector<int>& slots, const ThisMachine& machine);

/// `hosts`: the content of the hostfile; absent if there is none. Throws UserError naming the option.
JobPlacement place_job(const LaunchOptions& given, const std::optional<std::vector<Host>>& hosts,
                       const ThisMachine& machine);

/// The placement without these nodes, numbered as in `job`; the others get new numbers.
JobPlacement without(const JobPlacement& job, const std::set<int>& nodes);

/// Whether `host` is a name of the machine with this hostname, in any case, or an address of every machine.
bool is_this_machine(const std::string& host, const std::string& hostname);

/// Entries of a list such as CUDA_VISIBLE_DEVICES.
std::vector<std::string> split_list(const std::string& list);

}  // namespace zerorun::launcher
