// The resolved configuration beside a run's outputs: every setting with its value and where that came from.
// All ranks call it together, each in one thread.
#pragma once

#include <filesystem>

#include "comm/communicator.h"
#include "config/config.h"

namespace zerorun {

inline constexpr const char* kResolvedConfigName = "ds_config.resolved.json";

/// Rank 0 writes `config.resolved` into its `folder`, which is created if it does not exist (empty: nothing
/// is written). The file is whole at any time. Where that fails, every rank throws the same UserError: none
/// waits for one that is gone.
void write_resolved_config(const Config& config, const std::filesystem::path& folder,
                           Communicator& communicator);

}  // namespace zerorun
