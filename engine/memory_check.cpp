#include "engine/memory_check.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "device/moment_codes.h"
#include "engine/optimizer_groups.h"
#include "engine/setup.h"
#include "engine/state_placement.h"
#include "optim/update_rule_of.h"
#include "zero/stage.h"

namespace zerorun {
namespace {

constexpr std::array kParts = {&NeededMemory::values,    &NeededMemory::gradients, &NeededMemory::master,
                               &NeededMemory::moments,   &NeededMemory::buffers,   &NeededMemory::gathered,
                               &NeededMemory::checkpoint};

// The ranks that share a limit, and what they need together.
struct SharedLimit {
  MemoryLimit limit;
  NeededMemory needed;
  int ranks = 0;
};

std::map<std::string, SharedLimit> by_limit(std::span<const RankMemory> ranks) {
  std::map<std::string, SharedLimit> shared;
  for (const RankMemory& rank : ranks) {
    for (const MemoryLimit& limit : rank.limits) {
      SharedLimit& one =
          shared.try_emplace(limit.group, SharedLimit{.limit = limit, .needed = {}}).first->second;
      for (const auto part : kParts) one.needed.*part += rank.needed.*part;
      ++one.ranks;
    }
  }
  return shared;
}

std::string count_ranks(int count) {
  return std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

std::string text_of(const RankMemory& rank) {
  std::ostringstream text;
  for (const auto part : kParts) text << rank.needed.*part << ' ';
  for (const auto& [name, group, bytes] : rank.limits)
    text << std::quoted(name) << ' ' << std::quoted(group) << ' ' << bytes << ' ';
  return text.str();
}

RankMemory read(const std::string& text) {
  RankMemory rank;
  std::istringstream words(text);
  for (const auto part : kParts) words >> rank.needed.*part;
  for (MemoryLimit limit; words >> std::quoted(limit.name) >> std::quoted(limit.group) >> limit.bytes;)
    rank.limits.push_back(limit);
  return rank;
}

std::string in_mib(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

std::string remedy(const Config& config, const NeededMemory& needed) {
  if (needed.gathered > needed.total() / 4)
    return "gather fewer parameters at a time (zero_optimization.stage3_max_live_parameters), ";
  if (optimizer_offload(config.zero) != OffloadDevice::nvme && !config.precision.moments_in_8_bits)
    return "keep optimizer states in files (zero_optimization.offload_optimizer.device \"nvme\" at stages 1 "
           "to 3), ";
  const StagePolicy policy = policy_of(config);
  const bool in_files = parameter_offload(config.zero) == OffloadDevice::nvme;
  if (policy.partition_parameters && (!in_files || config.zero.offload_param.max_in_cpu > 0))
    return "keep parameters in files (zero_optimization.offload_param.device \"nvme\", max_in_cpu 0) and "
           "gather few at a time (stage3_max_live_parameters), ";
  if (policy_of(config.zero.stage).reduce_every_backward && !policy.reduce_every_backward)
    return "reduce gradients after each micro-batch (pipeline.reduce \"micro_batch\"), ";
  if (!policy.reduce_every_backward) return "partition gradients (zero_optimization.stage 2), ";
  return "";
}

}  // namespace

int64_t moment_bytes(const PrecisionConfig& precision, int64_t numel) {
  if (!precision.moments_in_8_bits) return numel * size_of(precision.moments);
  return numel + coded_blocks(numel) * static_cast<int64_t>(sizeof(float));
}

NeededMemory needed_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                           const BucketOptions& kinds, bool on_gpu) {
  const StagePolicy policy = policy_of(config);
  const PrecisionConfig& precision = config.precision;
  const int64_t gradient = policy.reduce_every_backward
                               ? size_of(precision.accumulation)
                               : std::min(size_of(precision.accumulation), size_of(precision.communication));
  std::vector<OptimizerConfig> groups;
  if (config.optimizer) groups = group_configs(*config.optimizer, options);
  const auto is_in_memory = [&](int bucket, const char* name) {
    return !store.has(bucket, name) || store.at(bucket, name).home != Home::file;
  };
  NeededMemory needed;
  int64_t gathered = 0;
  int64_t partitioned = 0;
  int64_t largest = 0;
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    const BucketLayout& layout = store.layout(bucket);
    const int64_t updated = policy.replicate_update ? layout.numel : layout.slice_numel;
    const bool is_on_gpu = on_gpu && !(kinds.shards_on_host && layout.partitioned);
    if (layout.partitioned) partitioned += layout.numel;
    if (store.has_values_in_files(bucket)) {
      gathered += layout.numel;
      largest = std::max(largest, layout.numel);
    } else if (is_on_gpu) {
      needed.checkpoint += size_of(precision.training) * layout.slice_numel;
    } else {
      needed.values += size_of(precision.training) * updated;
    }
    if (layout.group == kFrozen) continue;
    const bool has_exact = has_master(layout, kinds) && is_in_memory(bucket, kMaster);
    int64_t moments = 0;
    if (!groups.empty())
      moments = std::ranges::count_if(moments_of(groups[layout.group]),
                                      [&](const char* name) { return is_in_memory(bucket, name); });
    if (on_gpu && !kinds.master_on_host) {  // the GPU has the states of the update
      needed.checkpoint +=
          (size_of(precision.master) * has_exact + size_of(precision.moments) * moments) * layout.slice_numel;
      continue;
    }
    // The new values to send to the GPU need memory of their own, unless they are the master weights.
    if (is_on_gpu && !(has_exact && precision.training == precision.master))
      needed.values += size_of(precision.training) * updated;
    const bool sums_only = policy.reduce_every_backward || kinds.master_on_host;
    needed.gradients += gradient * (sums_only ? layout.slice_numel : layout.numel);
    if (has_exact) needed.master += size_of(precision.master) * updated;
    needed.moments += moments * moment_bytes(precision, updated);
    // A save copies moments in 8 bits as fp32 numbers.
    if (precision.moments_in_8_bits)
      needed.checkpoint += moments * size_of(precision.moments) * layout.slice_numel;
  }
  // On a GPU gathered parameters are not in the host's memory.
  if (!on_gpu)
    needed.gathered = size_of(precision.training) *
                      std::min(gathered, std::max<int64_t>(config.zero.max_live_parameters - largest, 0)) /
                      (kinds.shared ? store.ranks_sharing() : 1);
  const int near = config.zero.hpz_partition_size;
  if (!on_gpu && !kinds.shared && near > 1 && near < store.world_size())
    needed.gathered += size_of(precision.training) * partitioned / near;
  for (const SliceFiles* slices : {store.files(), store.value_files()})
    if (slices) needed.buffers += slices->files().buffer_bytes();
  return needed;
}

std::string too_much_memory(std::span<const RankMemory> ranks, const Config& config) {
  for (const auto& [name, shared] : by_limit(ranks)) {
    const auto& [limit, needed, count] = shared;
    if (needed.total() <= limit.bytes) continue;
    return "the model states of " + count_ranks(count) + " take " + in_mib(needed.total()) +
           " of memory (parameters " + in_mib(needed.values) + ", gradients " + in_mib(needed.gradients) +
           ", master weights " + in_mib(needed.master) + ", optimizer states " + in_mib(needed.moments) +
           ", buffers for files " + in_mib(needed.buffers) + ", gathered parameters " +
           in_mib(needed.gathered) + "), activations not counted, and " + limit.name + " is " +
           in_mib(limit.bytes) + " with swap: " + remedy(config, needed) +
           "use more hosts, a smaller model, or allow more memory";
  }
  return "";
}

std::string too_much_for_checkpoints(std::span<const RankMemory> ranks) {
  for (const auto& [name, shared] : by_limit(ranks)) {
    const auto& [limit, needed, count] = shared;
    if (needed.total() + needed.checkpoint <= limit.bytes) continue;
    return "save_checkpoint() copies the states of " + count_ranks(count) + " to the host, " +
           in_mib(needed.checkpoint) + " beside the " + in_mib(needed.total()) +
           " of model states that are there, and " + limit.name + " is " + in_mib(limit.bytes) +
           " with swap: a save may end the job; use more hosts, or allow more memory";
  }
  return "";
}

void check_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                  const BucketOptions& kinds, Communicator& communicator) {
  if (communicator.device().location().is_meta()) return;  // a plan, for other hosts than this one
  const bool on_gpu = communicator.device().streams().asynchronous();
  const RankMemory own{.needed = needed_memory(store, config, options, kinds, on_gpu),
                       .limits = memory_limits()};
  std::vector<RankMemory> ranks;
  for (const std::string& text : exchange_texts(text_of(own), communicator, "memory that is needed"))
    ranks.push_back(read(text));
  const std::string failure = too_much_memory(ranks, config);
  if (!failure.empty()) throw UserError(failure);
  const std::string warning = too_much_for_checkpoints(ranks);
  if (!warning.empty() && communicator.rank() == 0) log_warning(warning);
}

}  // namespace zerorun
