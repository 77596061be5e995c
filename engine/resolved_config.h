// Writes the resolved configuration beside a run's outputs: every setting with its value and its source. All
// ranks call it together, each in one thread.
#pragma once

#include <filesystem>

#include "comm/communicator.h"
#include "config/config.h"

namespace zerorun {

inline constexpr const char* kResolvedConfigName = "ds_config.resolved.json";

/// Rank 0 writes `config.resolved` to `folder`, which is created if it does not exist (empty: nothing is
/// written; other ranks ignore `folder`). Readers never see an incomplete file. If writing fails, every rank
/// throws the same UserError, so that no rank waits for rank 0.
void write_resolved_config(const Config& config, const std::filesystem::path& folder,
                           Communicator& communicator);

}  // namespace zerorun
