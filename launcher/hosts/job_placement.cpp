#include "launcher/hosts/job_placement.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "launcher/hosts/host_filter.h"

namespace zerorun::launcher {
namespace {

constexpr char kLocalhost[] = "localhost";

template <typename Value>
std::string join(const std::vector<Value>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i ? "," : "") << values[i];
  return text.str();
}

// `filter` with the names of this machine replaced by localhost.
std::string with_localhost(const std::string& filter, const std::string& hostname) {
  std::string result;
  std::istringstream parts(filter + "@");  // without the last @, getline would drop an empty last part
  for (std::string part; std::getline(parts, part, '@');) {
    const size_t colon = std::min(part.find(':'), part.size());
    const bool ours = is_this_machine(part.substr(0, colon), hostname);
    result += "@" + (ours ? kLocalhost + part.substr(colon) : part);
  }
  return result.substr(1);
}

std::vector<Node> select(const LaunchOptions& options, const std::vector<Host>& pool) {
  if (!options.include.empty()) return include_slots(pool, options.include);
  if (!options.exclude.empty()) return exclude_slots(pool, options.exclude);
  return first_slots(pool, options.nodes, options.ranks_per_node);
}

int visible_gpus(const ThisMachine& machine) {
  if (machine.visible_devices.empty() || machine.gpus == 0) return machine.gpus;
  return static_cast<int>(split_list(machine.visible_devices).size());
}

// The number that --num_gpus gpu, cpu or auto asks for.
int ranks_of_kind(const std::string& kind, bool has_hostfile, const ThisMachine& machine) {
  if (has_hostfile) {
    throw UserError("--num_gpus " + kind +
                    ": with a hostfile give a number, or leave the option out to use all slots of the hosts");
  }
  const int gpus = visible_gpus(machine);
  if (kind == "gpu" && gpus == 0) {
    throw UserError(
        "--num_gpus gpu: this machine has no GPU that may be used: give a number, or cpu for one rank "
        "on each processor");
  }
  if (kind == "cpu" || (kind == "auto" && gpus == 0)) return machine.processors;
  if (kind == "gpu" || kind == "auto") return gpus;
  throw UserError("--num_gpus " + kind + ": expected a number, gpu, cpu or auto");
}

std::vector<Node> this_machine_only(LaunchOptions options, const ThisMachine& machine) {
  const int usual = std::max(1, visible_gpus(machine));
  if (!names_slots(options)) {
    // More ranks than GPUs are no mistake: such a job trains on the CPU, and the engine says so.
    return first_slots({{kLocalhost, options.ranks_per_node.value_or(usual)}}, 1, options.ranks_per_node);
  }
  options.include = with_localhost(options.include, machine.hostname);
  options.exclude = with_localhost(options.exclude, machine.hostname);
  // Without GPUs, --include may name any slot number, but `--include localhost` and --exclude refer to the
  // one slot that is used by default.
  const bool bare = options.include == kLocalhost;
  const int slots = machine.gpus > 0 ? machine.gpus : bare || !options.exclude.empty() ? usual : kMostSlots;
  return select(options, {{kLocalhost, slots}});
}

std::vector<Node> equal_nodes(const LaunchOptions& options) {
  if (!options.ranks_per_node) {
    throw UserError(
        "--num_nodes " + std::to_string(*options.nodes) +
        " without a --hostfile needs --num_gpus (--nproc_per_node), the number of ranks on each host");
  }
  std::vector<Host> pool;
  for (int node = 0; node < *options.nodes; ++node)
    pool.push_back({"node " + std::to_string(node), *options.ranks_per_node});
  return first_slots(pool, options.nodes, options.ranks_per_node);
}

std::optional<int> find_node(const LaunchOptions& options, const Placement& placement,
                             const ThisMachine& machine) {
  const int nodes = static_cast<int>(placement.nodes().size());
  if (options.node_rank) {
    if (*options.node_rank < nodes) return *options.node_rank;
    throw UserError("--node_rank " + std::to_string(*options.node_rank) + ": the job has " +
                    std::to_string(nodes) + (nodes == 1 ? " host" : " hosts") +
                    ", numbered from 0 (--num_nodes, or --hostfile)");
  }
  for (int node = 0; node < nodes; ++node) {
    const std::string& host = placement.nodes()[node].host;
    if (is_this_machine(host, machine.hostname) || std::ranges::count(machine.addresses, host) > 0)
      return node;
  }
  return std::nullopt;
}

}  // namespace

bool names_slots(const LaunchOptions& options) {
  return !options.include.empty() || !options.exclude.empty();
}

JobPlacement place_job(const LaunchOptions& given, const std::optional<std::vector<Host>>& hosts,
                       const ThisMachine& machine) {
  LaunchOptions options = given;
  if (!given.ranks_by_kind.empty())
    options.ranks_per_node = ranks_of_kind(given.ranks_by_kind, hosts.has_value(), machine);
  const bool one_host = options.nodes.value_or(1) == 1;
  const bool launchers_join = options.node_rank || !options.rdzv_endpoint.empty();
  if (!one_host && !hosts && !launchers_join) {
    throw UserError(
        "--num_nodes " + std::to_string(*options.nodes) +
        " needs a --hostfile that lists the hosts, or --node_rank or --rdzv_endpoint on each of them");
  }
  Placement placement(hosts      ? select(options, *hosts)
                      : one_host ? this_machine_only(options, machine)
                                 : equal_nodes(options));
  const std::optional<int> node = find_node(options, placement, machine);
  return {std::move(placement), node};
}

JobPlacement without(const JobPlacement& job, const std::set<int>& nodes) {
  std::vector<Node> kept;
  std::optional<int> own;
  for (int node = 0; node < static_cast<int>(job.placement.nodes().size()); ++node) {
    if (nodes.contains(node)) continue;
    if (node == job.node) own = static_cast<int>(kept.size());
    kept.push_back(job.placement.nodes()[node]);
  }
  return {Placement(std::move(kept)), own};
}

std::string visible_devices(bool slots_named, const std::vector<int>& slots, const ThisMachine& machine) {
  if (slots_named) return join(slots);
  if (machine.gpus == 0) return "";
  std::vector<std::string> devices = split_list(machine.visible_devices);
  if (devices.empty()) {
    for (int gpu = 0; gpu < machine.gpus; ++gpu) devices.push_back(std::to_string(gpu));
  }
  devices.resize(std::min(devices.size(), slots.size()));
  return join(devices);
}

bool is_this_machine(const std::string& host, const std::string& hostname) {
  const auto is = [&](const std::string& name) {
    return std::ranges::equal(host, name, {}, ::tolower, ::tolower);
  };
  return is(kLocalhost) || host == "127.0.0.1" || host == "::1" || is(hostname) ||
         is(hostname.substr(0, hostname.find('.')));
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> devices;
  std::istringstream text(list);
  for (std::string device; std::getline(text, device, ',');) devices.push_back(device);
  return devices;
}

}  // namespace zerorun::launcher
