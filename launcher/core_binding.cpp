#include "launcher/core_binding.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/processor_list.h"

namespace zerorun::launcher {
namespace {

using Cores = std::vector<ProcessorCore>;

std::vector<unsigned long> mask_of(const std::vector<int>& numbers) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask;
  for (const int number : numbers) {
    mask.resize(std::max(mask.size(), static_cast<size_t>(number / kBits + 1)));
    mask[number / kBits] |= 1UL << (number % kBits);
  }
  return mask;
}

// The numbers that are in both lists, which must be in ascending order.
std::vector<int> in_both(const std::vector<int>& first, const std::vector<int>& second) {
  std::vector<int> both;
  std::ranges::set_intersection(first, second, std::back_inserter(both));
  return both;
}

void sort_unique(std::vector<int>& numbers) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

std::vector<int> listed_processors(const HostCores& host, const std::string& list) {
  const std::string name = "--bind_core_list";
  std::vector<int> all;
  for (const ProcessorCore& core : host.cores)
    all.insert(all.end(), core.processors.begin(), core.processors.end());
  std::ranges::sort(all);
  const std::vector<int> listed = parse_processor_list(list, name);
  for (const int processor : listed) {
    if (std::ranges::binary_search(host.usable, processor)) continue;
    const bool exists = std::ranges::binary_search(all, processor);
    throw UserError(name + ": processor " + std::to_string(processor) +
                    (exists ? " may not be used here: the affinity mask or the cgroup's cpuset allows "
                            : " does not exist on this host, which offers ") +
                    processor_list(host.usable));
  }
  return listed;
}

// Keeps only processors that are in `processors`, and only cores that then still have a processor.
Cores restrict_cores(const Cores& cores, const std::vector<int>& processors) {
  Cores left;
  for (ProcessorCore core : cores) {
    core.processors = in_both(core.processors, processors);
    if (!core.processors.empty()) left.push_back(std::move(core));
  }
  return left;
}

// Divides the cores into groups of consecutive cores for which `key` has the same value.
template <typename Key>
std::vector<Cores> grouped(const Cores& cores, Key key) {
  std::vector<Cores> groups;
  for (const ProcessorCore& core : cores) {
    if (groups.empty() || key(groups.back().front()) != key(core)) groups.emplace_back();
    groups.back().push_back(core);
  }
  return groups;
}

// The number of ranks in each group, if `ranks` ranks with `each` cores are spread as evenly as the groups'
// sizes allow. Empty if some rank would need cores of two groups.
std::vector<int> spread(const std::vector<Cores>& groups, int ranks, int each) {
  std::vector<int> counts(groups.size());
  for (int rank = 0; rank < ranks; ++rank) {
    int best = -1;
    for (int group = 0; group < static_cast<int>(groups.size()); ++group) {
      const bool fits = (counts[group] + 1) * each <= static_cast<int>(groups[group].size());
      if (fits && (best < 0 || counts[group] < counts[best])) best = group;
    }
    if (best < 0) return {};
    ++counts[best];
  }
  return counts;
}

enum class Level { package, nodes, cache, core };

std::vector<Cores> groups_at(Level level, const Cores& cores) {
  switch (level) {
    case Level::package:
      return grouped(cores, [](const ProcessorCore& core) { return core.package; });
    case Level::nodes:
      return grouped(cores, [](const ProcessorCore& core) { return core.nodes; });
    default:
      return grouped(cores, [](const ProcessorCore& core) { return core.cache; });
  }
}

// Divides `cores` among `ranks` ranks, `each` cores for each rank, and appends the ranks' shares. If every
// rank can have its cores in a single group of `level`, spreads the ranks over the groups and divides each
// group at the next level. Otherwise divides all cores at the next level. At level `core`, ranks get the
// cores in order.
void divide(const Cores& cores, int ranks, int each, Level level, std::vector<Cores>& shares) {
  if (level == Level::core) {
    for (int rank = 0; rank < ranks; ++rank)
      shares.emplace_back(cores.begin() + rank * each, cores.begin() + (rank + 1) * each);
    return;
  }
  const Level next = static_cast<Level>(static_cast<int>(level) + 1);
  const std::vector<Cores> groups = groups_at(level, cores);
  const std::vector<int> counts = spread(groups, ranks, each);
  if (counts.empty()) return divide(cores, ranks, each, next, shares);
  for (size_t group = 0; group < groups.size(); ++group)
    divide(groups[group], counts[group], each, next, shares);
}

bool has_several_nodes(const Cores& cores) {
  return std::ranges::any_of(cores,
                             [&](const ProcessorCore& core) { return core.nodes != cores.front().nodes; });
}

CoreBinding binding_of(const Cores& share, bool several_nodes, int quota_per_rank) {
  CoreBinding binding;
  for (const ProcessorCore& core : share) {
    binding.processors.insert(binding.processors.end(), core.processors.begin(), core.processors.end());
    if (several_nodes) binding.nodes.insert(binding.nodes.end(), core.nodes.begin(), core.nodes.end());
  }
  sort_unique(binding.processors);
  sort_unique(binding.nodes);
  binding.threads = std::clamp(quota_per_rank, 1, static_cast<int>(share.size()));
  binding.processor_mask = mask_of(binding.processors);
  binding.node_mask = mask_of(binding.nodes);
  return binding;
}

}  // namespace

std::vector<CoreBinding> bind_cores(const HostCores& host, int ranks, const std::string& core_list,
                                    std::optional<double> quota) {
  const std::vector<int> processors = core_list.empty() ? host.usable : listed_processors(host, core_list);
  const Cores cores = restrict_cores(host.cores, processors);
  const int each = static_cast<int>(cores.size()) / ranks;
  if (each == 0) {
    throw UserError("--bind_cores_to_rank: " + std::to_string(ranks) +
                    " ranks on this host need a core each, and " +
                    (core_list.empty() ? "it offers " : "--bind_core_list has ") +
                    std::to_string(cores.size()) + " (hyperthreads of a core count once; processors " +
                    processor_list(processors) + "): start fewer ranks, or leave the option out");
  }
  std::vector<Cores> shares;
  divide(cores, ranks, each, Level::package, shares);
  const bool several_nodes = has_several_nodes(host.cores);
  const int quota_per_rank = quota ? static_cast<int>(std::min(*quota, 1e6)) / ranks : each;
  std::vector<CoreBinding> bindings;
  for (const Cores& share : shares) bindings.push_back(binding_of(share, several_nodes, quota_per_rank));
  return bindings;
}

void refuse_other_bindings(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if ((name == "KMP_AFFINITY" || name == "GOMP_CPU_AFFINITY") && entry.size() > name.size() + 1) {
      throw UserError("--bind_cores_to_rank: the environment variable " + name +
                      " binds threads too, those of all ranks alike: unset it, or leave the option out");
    }
  }
}

bool apply_binding(const CoreBinding& binding) noexcept {
  if (!binding.node_mask.empty()) {
    const auto set_policy = [&](int mode) {
      // The kernel reads one bit less than its argument says, so 1 is added.
      return ::syscall(SYS_set_mempolicy, mode, binding.node_mask.data(),
                       binding.node_mask.size() * sizeof(unsigned long) * CHAR_BIT + 1) == 0;
    };
    // Before Linux 5.15 only one node can be preferred. A cpuset may forbid the nodes, and a container may
    // forbid the call: then memory still comes from the node of the processor that first uses it.
    if (!set_policy(MPOL_PREFERRED_MANY)) set_policy(MPOL_PREFERRED);
  }
  return ::syscall(SYS_sched_setaffinity, 0, binding.processor_mask.size() * sizeof(unsigned long),
                   binding.processor_mask.data()) == 0;
}

}  // namespace zerorun::launcher
