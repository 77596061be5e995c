#include "engine/offload.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checksums.h"
#include "comm/agreement.h"
#include "engine/optimizer_groups.h"
#include "optim/update_rule_of.h"
#include "zero/stage.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

// Buffers come to this share of the state, as far as chunks of whole checksum blocks allow.
constexpr double kShareOfBuffers = 0.05;
constexpr int64_t kLargestChunk = int64_t{32} << 20;  // bytes: beyond that a disk gains nothing

std::vector<std::vector<StateInFile>> states_in_files(const SliceStore& store, const Config& config,
                                                      const std::vector<OptimizerConfig>& groups) {
  std::vector<std::vector<StateInFile>> states(store.count());
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    const int group = store.layout(bucket).group;
    if (group == kFrozen || store.layout(bucket).slice_numel == 0) continue;
    if (config.precision.training != Dtype::fp32) states[bucket].push_back({StateKind::master, kMaster});
    for (const char* name : moments_of(groups[group])) states[bucket].push_back({StateKind::moment, name});
  }
  return states;
}

// Of one generation, on this rank.
int64_t state_bytes(const SliceStore& store, const std::vector<std::vector<StateInFile>>& states) {
  int64_t total = 0;
  for (int bucket = 0; bucket < store.count(); ++bucket)
    total += static_cast<int64_t>(states[bucket].size() * sizeof(float)) * store.layout(bucket).slice_numel;
  return total;
}

// What to say where the files cannot be made.
std::string room_for(int64_t bytes, const fs::path& folder) {
  std::error_code failed;
  const auto free = fs::space(folder, failed).available;
  if (failed) return "";
  return "; zero_optimization.offload_optimizer takes two generations of " + std::to_string(bytes >> 20) +
         " MiB there on each rank, and one more while a checkpoint is written; " +
         std::to_string(free >> 20) + " MiB are free";
}

int64_t chunk_bytes(const SliceStore& store, const std::vector<std::vector<StateInFile>>& states,
                    const OffloadConfig& offload, int64_t buffers) {
  int64_t widest = 1;  // bytes of an element
  for (const auto& of_bucket : states)
    widest = std::max(widest, static_cast<int64_t>(of_bucket.size() * sizeof(float)));
  const auto share =
      static_cast<int64_t>(kShareOfBuffers * static_cast<double>(state_bytes(store, states) / buffers));
  const bool is_bounded = offload.sub_group_size > 0 && offload.sub_group_size < kLargestChunk;
  const int64_t of_group = is_bounded ? offload.sub_group_size * widest : kLargestChunk;
  const int64_t most = std::min({share, of_group, kLargestChunk});
  return std::max(most / kChecksumBlock, int64_t{1}) * kChecksumBlock;
}

StateFilesOptions files_options(const SliceStore& store, const Config& config,
                                const std::vector<std::vector<StateInFile>>& states,
                                const Communicator& communicator) {
  const OffloadConfig& offload = config.zero.offload_optimizer;
  const int64_t buffers = std::max<int64_t>(offload.buffer_count, kFewestBuffers);
  const int64_t chunk = chunk_bytes(store, states, offload, buffers);
  const int64_t of_queue = (buffers * chunk + offload.aio.queue_depth - 1) / offload.aio.queue_depth;
  const int64_t smallest = std::min(
      {int64_t{sizeof(float)}, size_of(config.precision.training), size_of(config.precision.communication)});
  return {.folder = offload.nvme_path,
          .rank = communicator.rank(),
          .buffers = static_cast<int>(buffers),
          .chunk_bytes = chunk,
          .request_bytes = rounded_up(std::max(offload.aio.block_size, of_queue), kPageBytes),
          .alignment = communicator.device().alignment() / smallest,
          .threads = static_cast<int>(offload.aio.threads),
          .timeout = communicator.timeout()};
}

// So many more than this process has for all else.
void allow_open_files(int64_t count) {
  constexpr rlim_t kForTheRest = 512;
  rlimit limit{};
  const rlim_t wanted = static_cast<rlim_t>(count) + kForTheRest;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  if (limit.rlim_max >= wanted) {
    limit.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  throw UserError("optimizer states in files take up to " + std::to_string(count) +
                  " open files on a rank, and this process may have " + std::to_string(limit.rlim_max) +
                  ": raise the hard limit (ulimit -Hn), or allow larger buckets (reduce_bucket_size)");
}

}  // namespace

void check_offload_options(const Config& config, const InitializeOptions& options) {
  if (config.zero.offload_optimizer.device != OffloadDevice::nvme || config.zero.stage == 0) return;
  if (options.optimizer) {
    throw UserError(
        "zero_optimization.offload_optimizer.device is \"nvme\", and the optimizer is the program's own, "
        "which keeps its state in memory: set it to \"cpu\", or name an optimizer in the config");
  }
}

void log_offload(const Config& config, const SliceStore& store, const Communicator& communicator) {
  const OffloadDevice device = config.zero.offload_optimizer.device;
  if (communicator.rank() != 0 || device == OffloadDevice::none || config.zero.stage == 0) return;
  if (communicator.device().streams().asynchronous()) {
    log_warning("offload_optimizer: ranks on GPUs keep all optimizer states in the GPU's memory");
  } else if (const StateFiles* files = store.files()) {
    log_info("offload_optimizer: optimizer states and master weights are in files of " +
             config.zero.offload_optimizer.nvme_path + ", " + std::to_string(files->file_bytes() >> 20) +
             " MiB on each rank (two generations), through " + std::to_string(files->buffer_bytes() >> 20) +
             " MiB of buffers and " + files->transfers());
  } else {
    log_info(
        "offload_optimizer: ranks on CPUs have optimizer states in the host's memory anyway; nothing is "
        "copied");
  }
}

void offload_states(SliceStore& store, const Config& config, const InitializeOptions& options,
                    const std::vector<NamedParameter>& parameters, Communicator& communicator) {
  const OffloadConfig& offload = config.zero.offload_optimizer;
  if (offload.device != OffloadDevice::nvme || config.zero.stage == 0) return;
  if (communicator.device().streams().asynchronous()) return;
  const auto states = states_in_files(store, config, group_configs(*config.optimizer, options));
  if (std::ranges::all_of(states, [](const auto& of_bucket) { return of_bucket.empty(); })) return;
  const StateFilesOptions files = files_options(store, config, states, communicator);
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.name);
  on_all_ranks(communicator, "making files for optimizer states", [&] {
    std::error_code failed;
    fs::create_directories(offload.nvme_path, failed);  // what is wrong with it is told next
    allow_open_files(3 * static_cast<int64_t>(states.size()));
    try {
      store.keep_in_files(local_file_system(), files, states, names);
    } catch (const UserError& error) {
      throw UserError(error.what() + room_for(state_bytes(store, states), offload.nvme_path));
    }
  });
}

void ShardStates::plan(std::span<const int> shards) {
  StateFiles* files = store_->files();
  if (!files) return;
  planned_.clear();
  for (const int shard : shards) {
    const auto [bucket, chunk] = chunks_[shard];
    const int slice = store_->slice_in_files(bucket);
    if (slice >= 0) planned_.push_back(files->first_chunk(slice) + chunk);
  }
  files->plan(planned_);
}

}  // namespace zerorun
