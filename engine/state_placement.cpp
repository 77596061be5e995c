#include "engine/state_placement.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/file_path.h"
#include "base/log.h"
#include "checkpoint/checksums.h"
#include "comm/agreement.h"
#include "engine/host_update.h"
#include "engine/optimizer_groups.h"
#include "optim/update_rule_of.h"
#include "zero/stage.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

// All buffers together take at most this share of the state, but each holds at least one checksum block.
constexpr double kShareOfBuffers = 0.05;
constexpr int64_t kLargestChunk = int64_t{32} << 20;  // bytes; a disk does not transfer larger chunks faster

std::vector<std::vector<StateInFile>> states_in_files(const SliceStore& store, const BucketOptions& kinds,
                                                      const PrecisionConfig& precision, double ratio,
                                                      const std::vector<OptimizerConfig>& groups) {
  std::vector<std::vector<StateInFile>> states(store.count());
  int64_t numel = 0;
  for (const BucketLayout& layout : store.layout().buckets)
    numel += layout.group == kFrozen ? 0 : layout.slice_numel;
  const auto most = static_cast<int64_t>(ratio * static_cast<double>(numel));
  int64_t in_files = 0;
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    const int group = store.layout(bucket).group;
    const int64_t slice = store.layout(bucket).slice_numel;
    if (group == kFrozen || slice == 0 || in_files + slice > most) continue;
    in_files += slice;
    if (has_master(store.layout(bucket), kinds))
      states[bucket].push_back({StateKind::master, kMaster, precision.master});
    for (const char* name : moments_of(groups[group]))
      states[bucket].push_back({StateKind::moment, name, precision.moments});
  }
  return states;
}

// Returns the buckets whose slices of values are kept in files. Goes through the partitioned buckets in
// order. A slice stays in memory if the slices kept there, including this one, have at most max_in_cpu
// elements.
std::vector<int> buckets_in_files(const SliceStore& store, const OffloadParamConfig& offload) {
  std::vector<int> buckets;
  int64_t in_memory = 0;
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    const BucketLayout& layout = store.layout(bucket);
    if (!layout.partitioned || layout.slice_numel == 0) continue;
    if (in_memory + layout.slice_numel > offload.max_in_cpu) {
      buckets.push_back(bucket);
    } else {
      in_memory += layout.slice_numel;
    }
  }
  return buckets;
}

// Bytes that one generation of `states` takes on this rank.
int64_t bytes_per_element(const std::vector<StateInFile>& states) {
  int64_t bytes = 0;
  for (const StateInFile& state : states) bytes += size_of(state.dtype);
  return bytes;
}

int64_t state_bytes(const SliceStore& store, const std::vector<std::vector<StateInFile>>& states) {
  int64_t total = 0;
  for (int bucket = 0; bucket < store.count(); ++bucket)
    total += bytes_per_element(states[bucket]) * store.layout(bucket).slice_numel;
  return total;
}

// For the error about a full disk: how much room is needed, and how much is free.
std::string room_for(int64_t bytes, const std::string& section, const fs::path& folder) {
  std::error_code failed;
  const auto free = fs::space(folder, failed).available;
  if (failed) return "";
  return "; zero_optimization." + section + " takes two generations of " + std::to_string(bytes >> 20) +
         " MiB there on each rank, and one more while a checkpoint is written; " +
         std::to_string(free >> 20) + " MiB are free";
}

int64_t chunk_bytes(const SliceStore& store, const std::vector<std::vector<StateInFile>>& states,
                    const OffloadOptimizerConfig& offload, int64_t buffers) {
  int64_t widest = 1;  // bytes per element
  for (const auto& of_bucket : states) widest = std::max(widest, bytes_per_element(of_bucket));
  const auto share =
      static_cast<int64_t>(kShareOfBuffers * static_cast<double>(state_bytes(store, states) / buffers));
  const bool is_bounded = offload.sub_group_size > 0 && offload.sub_group_size < kLargestChunk;
  const int64_t of_group = is_bounded ? offload.sub_group_size * widest : kLargestChunk;
  const int64_t most = std::min({share, of_group, kLargestChunk});
  return std::max(most / checkpoint::kChecksumBlock, int64_t{1}) * checkpoint::kChecksumBlock;
}

// `buffer_bytes`: the approximate size of a chunk.
StateFilesOptions files_options(const Config& config, const std::string& folder, int64_t buffer_count,
                                int64_t buffer_bytes, const Communicator& communicator) {
  const AioConfig& aio = config.zero.aio;
  const int64_t buffers = std::max<int64_t>(buffer_count, kFewestBuffers);
  const int64_t of_queue = (buffers * buffer_bytes + aio.queue_depth - 1) / aio.queue_depth;
  const int64_t smallest = std::min(
      {int64_t{sizeof(float)}, size_of(config.precision.training), size_of(config.precision.communication)});
  return {.folder = folder,
          .rank = communicator.rank(),
          .buffers = static_cast<int>(buffers),
          .chunk_bytes = buffer_bytes,
          .request_bytes = checkpoint::rounded_up(std::max(aio.block_size, of_queue), checkpoint::kPageBytes),
          .alignment = communicator.device().alignment() / smallest,
          .threads = static_cast<int>(aio.threads),
          .timeout = communicator.timeout(),
          .sizes_only = communicator.device().location().is_meta()};
}

int64_t open_files() {
  std::error_code failed;
  return std::distance(fs::directory_iterator("/proc/self/fd", failed), fs::directory_iterator());
}

// Raises the limit of open files of this process to the number open now, plus `count`, plus a reserve for
// everything else. Throws UserError if the hard limit is lower.
void allow_open_files(const std::string& section, int64_t count) {
  constexpr int64_t kForTheRest = 512;
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(open_files() + count + kForTheRest);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  if (limit.rlim_max >= wanted) {
    limit.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  throw UserError("zero_optimization." + section + " takes up to " + std::to_string(count) +
                  " open files on a rank, and this process may have " + std::to_string(limit.rlim_max) +
                  " in all: raise the hard limit (ulimit -Hn), or allow larger buckets (reduce_bucket_size)");
}

// Runs `keep` on all ranks. If a disk is full, the error says how much room `section` takes in `folder`. Each
// of the `slots` slices may have four files open: its two slots, and a replacement file for each slot that a
// save has lent and no update has written since ([Note: generations] in offload/state_files.h).
template <typename Keep>
void make_files(Communicator& communicator, const std::string& section, const fs::path& folder, int64_t bytes,
                int64_t slots, const Keep& keep) {
  if (communicator.device().location().is_meta()) return keep();  // a plan
  on_all_ranks(communicator, "making files for " + section, [&] {
    check_path(folder, "", "initialize");
    std::error_code failed;
    fs::create_directories(folder, failed);  // if this fails, keep() reports why
    allow_open_files(section, 4 * slots);
    try {
      keep();
    } catch (const UserError& error) {
      const std::string what = error.what();
      const bool is_full = what.find(std::strerror(ENOSPC)) != std::string::npos;
      throw UserError(what + (is_full ? room_for(bytes, section, folder) : ""));
    }
  });
}

void offload_optimizer(SliceStore& store, const Config& config, const InitializeOptions& options,
                       const BucketOptions& kinds, const std::vector<std::string>& names, const Mesh& mesh) {
  const OffloadOptimizerConfig& offload = config.zero.offload_optimizer;
  if (optimizer_offload(config.zero) != OffloadDevice::nvme) return;
  const auto states = states_in_files(store, kinds, config.precision, offload.ratio,
                                      group_configs(*config.optimizer, options));
  const bool is_empty = std::ranges::all_of(states, [](const auto& of_bucket) { return of_bucket.empty(); });
  if (is_empty && !mesh.has_groups()) return;  // another data group may have some
  const int64_t chunk =
      chunk_bytes(store, states, offload, std::max<int64_t>(offload.buffer_count, kFewestBuffers));
  const StateFilesOptions files =
      files_options(config, offload.nvme_path, offload.buffer_count, chunk, mesh.world());
  make_files(mesh.world(), "offload_optimizer", offload.nvme_path, state_bytes(store, states), store.count(),
             [&] {
               if (!is_empty) store.keep_in_files(checkpoint::local_file_system(), files, states, names);
             });
}

void offload_param(SliceStore& store, const Config& config, const std::vector<std::string>& names,
                   const Mesh& mesh) {
  const OffloadParamConfig& offload = config.zero.offload_param;
  if (parameter_offload(config.zero) != OffloadDevice::nvme) return;
  const std::vector<int> buckets = buckets_in_files(store, offload);
  if (buckets.empty() && !mesh.has_groups()) return;  // another data group may have some
  const Dtype dtype = config.precision.training;
  int64_t total = 0;
  int64_t largest = 0;
  for (const int bucket : buckets) {
    const int64_t bytes = store.layout(bucket).slice_numel * size_of(dtype);
    total += bytes;
    largest = std::max(largest, bytes);
  }
  StateFilesOptions files =
      files_options(config, offload.nvme_path, offload.buffer_count, largest, mesh.world());
  // One chunk holds a whole slice: half of it is for the values, half for the header of the slice's file.
  files.chunk_bytes = checkpoint::rounded_up(2 * largest, checkpoint::kChecksumBlock);
  Device& device = mesh.world().device();
  files.pin = [&device](void* memory, size_t bytes) { return device.pin(memory, bytes); };
  make_files(mesh.world(), "offload_param", offload.nvme_path, total, static_cast<int64_t>(buckets.size()),
             [&] {
               if (!buckets.empty())
                 store.keep_values_in_files(checkpoint::local_file_system(), files, dtype, buckets, names);
             });
}

std::string in_files(const SliceFiles& slices, const std::string& folder) {
  const StateFiles& files = slices.files();
  return " in files of " + folder + ", " + std::to_string(files.file_bytes() >> 20) +
         " MiB on each rank (two generations), through " + std::to_string(files.buffer_bytes() >> 20) +
         " MiB of buffers and " + files.transfers();
}

void log_place(OffloadDevice device, const std::string& section, const std::string& what,
               const SliceFiles* files, const std::string& folder) {
  if (files) {
    log_info(section + ": " + what + " are" + in_files(*files, folder));
  } else {
    log_info(section + ": ranks on CPUs have " + what + " in the host's memory" +
             (device == OffloadDevice::cpu ? " anyway; nothing is copied" : ", where all of it may stay"));
  }
}

void log_offload_from_gpu(const Config& config, const SliceStore& store, Device& device) {
  const ZeroConfig& zero = config.zero;
  if (optimizer_offload(zero) != OffloadDevice::none) {
    const std::string what = "offload_optimizer: optimizer states and master weights ";
    if (!updates_on_host(config, device)) {
      log_warning(what + "of Muon stay in the GPU's memory, where its matrices are");
    } else if (store.files()) {
      log_info(what + "are" + in_files(*store.files(), zero.offload_optimizer.nvme_path) +
               ", updated on the host");
    } else {
      log_info(what + "are in the host's memory, updated there");
      if (zero.offload_optimizer.ratio < 1)
        log_warning(
            "offload_optimizer.ratio applies to files (device \"nvme\"): with \"cpu\" all states are in host "
            "memory");
    }
  }
  if (parameter_offload(zero) == OffloadDevice::none) return;
  const std::string what = "offload_param: slices of parameters ";
  if (!shards_off_gpu(config, device)) {
    log_warning(what +
                "stay in the GPU's memory, where they are updated: with offload_optimizer (and another "
                "optimizer than Muon) the host updates them");
  } else if (store.value_files()) {
    log_info(what + "are" + in_files(*store.value_files(), zero.offload_param.nvme_path));
  } else {
    log_info(what + "are in the host's memory");
  }
}

}  // namespace

OffloadDevice optimizer_offload(const ZeroConfig& zero) {
  return policy_of(zero.stage).replicate_update ? OffloadDevice::none : zero.offload_optimizer.device;
}

OffloadDevice parameter_offload(const ZeroConfig& zero) {
  return policy_of(zero.stage).partition_parameters ? zero.offload_param.device : OffloadDevice::none;
}

void check_offload_options(const Config& config, const InitializeOptions& options) {
  const ZeroConfig& zero = config.zero;
  if (!options.optimizer) return;
  auto check = [](bool is_refused, const std::string& section, const std::string& why) {
    if (!is_refused) return;
    throw UserError("zero_optimization." + section +
                    ".device is \"nvme\", and the optimizer is the program's own, " + why +
                    ": set it to \"cpu\", or name an optimizer in the config");
  };
  check(optimizer_offload(zero) == OffloadDevice::nvme, "offload_optimizer",
        "which keeps its state in memory");
  check(parameter_offload(zero) == OffloadDevice::nvme, "offload_param",
        "which needs everything that it updates in memory at once");
}

void log_offload(const Config& config, const SliceStore& store, const Communicator& communicator) {
  if (communicator.rank() != 0 || communicator.device().location().is_meta()) return;
  const ZeroConfig& zero = config.zero;
  if (communicator.device().streams().asynchronous())
    return log_offload_from_gpu(config, store, communicator.device());
  if (optimizer_offload(zero) != OffloadDevice::none) {
    log_place(zero.offload_optimizer.device, "offload_optimizer", "optimizer states and master weights",
              store.files(), zero.offload_optimizer.nvme_path);
  }
  if (parameter_offload(zero) != OffloadDevice::none) {
    log_place(zero.offload_param.device, "offload_param", "slices of parameters", store.value_files(),
              zero.offload_param.nvme_path);
  }
}

void keep_states_in_files(SliceStore& store, const Config& config, const InitializeOptions& options,
                          const BucketOptions& kinds, const std::vector<NamedParameter>& parameters,
                          const Mesh& mesh) {
  const bool on_gpu = mesh.world().device().streams().asynchronous();
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.name);
  if (!on_gpu || kinds.master_on_host) offload_optimizer(store, config, options, kinds, names, mesh);
  if (!on_gpu || kinds.shards_on_host) offload_param(store, config, names, mesh);
}

}  // namespace zerorun
