// Whether the memory of the hosts is enough for what the ranks will keep there, before any of it is taken.
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

/// Bytes of model states that a rank keeps in memory, as far as they are certain before training: nothing of
/// activations, of what travels, or of what an optimizer of the program remembers.
struct NeededMemory {
  int64_t values = 0;
  int64_t gradients = 0;
  int64_t master = 0;
  int64_t moments = 0;
  int64_t buffers = 0;   // between files and memory
  int64_t gathered = 0;  // what comes from files for its uses, at a time

  int64_t total() const { return values + gradients + master + moments + buffers + gathered; }
};

/// Of the host's memory. `store`: has in files what will be there. Of values that ranks may share each counts
/// its part. Where `kinds` has the host update for a GPU, what it keeps for that: page-locked.
NeededMemory needed_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                           const BucketOptions& kinds);

/// What a rank needs, and what is allowed to it together with others.
struct RankMemory {
  NeededMemory needed;
  std::vector<MemoryLimit> limits;
};

/// Why `ranks`, by rank, cannot keep what they need; empty: nothing says so.
std::string too_much_memory(std::span<const RankMemory> ranks, const Config& config);

/// Throws UserError on all ranks where they need more than a host has, or lets them have. A collective.
void check_memory(const SliceStore& store, const Config& config, const InitializeOptions& options,
                  const BucketOptions& kinds, Communicator& communicator);

}  // namespace zerorun
