// What a user may change in ds_config.json if memory runs out. Internal to engine/.
#pragma once

#include "base/memory_report.h"
#include "config/config_types.h"

namespace zerorun {

/// For each use of memory up to three changes that this config has not made yet, the best one first.
/// `data_ranks`: the ranks among which ZeRO divides. `on_gpu`: this rank computes on a GPU.
RemediesByUse remedies_of(const Config& config, int data_ranks, bool on_gpu);

}  // namespace zerorun
