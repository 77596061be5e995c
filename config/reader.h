// Checks the tree of a configuration against the key table: names, types, ranges, "auto". Valid values become
// settings; errors, warnings and notes go to the diagnostics. Rules that involve several keys are in
// config/sections.h. Used by check_config and load_config in their thread.
#pragma once

#include <optional>

#include "config/config_types.h"
#include "config/document.h"
#include "config/settings.h"

namespace zerorun::config {

enum class Purpose {
  check,  // an "auto" without a value is accepted
  run     // an "auto" without a value is an error
};

struct ReadOptions {
  Purpose purpose = Purpose::check;
  Arguments arguments = {};
  std::optional<int64_t> hidden_size = {};
  bool compat = false;
};

Settings read_settings(const Value& document, const ReadOptions& options, Diagnostics& diagnostics);

}  // namespace zerorun::config
