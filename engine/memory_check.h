// Checks that the hosts have enough memory for what the ranks will keep there, before any of it is allocated:
// what training needs, and, for ranks on GPUs, the copies that a checkpoint is written from.
// Internal to engine/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/memory_limits.h"
#include "comm/communicator.h"
#include "config/config_types.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "zero/buckets.h"
#include "zero/slice_store.h"

namespace zerorun {

/// Bytes of model states that a rank keeps in memory, as far as they are known before training: without
/// activations, communication buffers of gradients, or the state of a program's own optimizer.
struct NeededMemory {
  int64_t values = 0;
  int64_t gradients = 0;
  int64_t master = 0;
  int64_t moments = 0;
  int64_t buffers = 0;   // buffers between files and memory
  int64_t gathered = 0;  // values from files that are gathered at the same time
  /// The copy of a GPU's states from which a checkpoint is written. The first save allocates it. Not in
  /// total().
  int64_t checkpoint = 0;

  int64_t total() const { return values + gradients + master + moments + buffers + gathered; }
};

/// The bytes of one moment of `numel` elements.
int64_t moment_bytes(const PrecisionConfig& precision, int64_t numel);

/// Counts host memory. `store` must already know which states go to files. From stage 1 on, counts only the
/// rank's slice of the values, because the ranks of a host may share one copy. `on_gpu`: the rank computes on
/// a GPU. Then only what is kept on the host counts: page-locked memory if the host updates the parameters,
/// and buffers for files.
NeededMemory needed_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                           const BucketOptions& kinds, bool on_gpu);

/// The memory that a rank needs, and the memory limits that it shares with other processes.
struct RankMemory {
  NeededMemory needed;
  std::vector<MemoryLimit> limits;
};

/// The error text if `ranks` (by rank) need more than a limit allows, else empty.
std::string too_much_memory(std::span<const RankMemory> ranks, const Config& config);

/// The text of a warning if `ranks`, for which too_much_memory() is empty, need more than a limit allows
/// while a checkpoint is written; else empty.
std::string too_much_for_checkpoints(std::span<const RankMemory> ranks);

/// Throws UserError on all ranks if they need more memory than a host has or its cgroups allow. Logs a
/// warning if that is so only while a checkpoint is written. A collective.
void check_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                  const BucketOptions& kinds, Communicator& communicator);

}  // namespace zerorun
