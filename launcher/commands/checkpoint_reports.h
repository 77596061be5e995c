// Formats the results of `zerorun checkpoint` as text and as JSON. Pure; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/comparison.h"
#include "checkpoint/inventory.h"
#include "checkpoint/saved_state.h"
#include "checkpoint/verification.h"

namespace zerorun::launcher {

/// Text such as "1.50 GB". The units are powers of 1000.
std::string readable_bytes(int64_t bytes);

std::string to_text(const std::vector<checkpoint::InventoryTag>& tags);
nlohmann::ordered_json to_json(const std::vector<checkpoint::InventoryTag>& tags);

/// `parameters`: the names of the parameters to show.
std::string to_text(const checkpoint::SavedState& saved, const std::vector<std::string>& parameters);
nlohmann::ordered_json to_json(const checkpoint::SavedState& saved,
                               const std::vector<std::string>& parameters);

std::string to_text(const checkpoint::Verification& result, const std::string& folder, double seconds);
nlohmann::ordered_json to_json(const checkpoint::Verification& result, const std::string& folder);

std::string to_text(const checkpoint::CheckpointComparison& result);
nlohmann::ordered_json to_json(const checkpoint::CheckpointComparison& result);

std::string to_text(const checkpoint::PrunePlan& plan, bool is_dry_run);
nlohmann::ordered_json to_json(const checkpoint::PrunePlan& plan, bool is_dry_run);

}  // namespace zerorun::launcher
