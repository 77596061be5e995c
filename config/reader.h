// Reads the tree of a configuration against the key table: names, types, ranges, "auto". What fits becomes
// settings, everything that there is to say goes to the diagnostics. Rules that join several keys are those
// of config/sections.h. Used by check_config and load_config, in their thread.
#pragma once

#include <optional>

#include "config/config_types.h"
#include "config/document.h"
#include "config/settings.h"

namespace zerorun {

enum class Purpose {
  check,  // "auto" may stay
  run     // it is refused
};

struct ReadOptions {
  Purpose purpose = Purpose::check;
  Arguments arguments = {};
  std::optional<int64_t> hidden_size = {};
  bool compat = false;
};

Settings read_settings(const Value& document, const ReadOptions& options, Diagnostics& diagnostics);

}  // namespace zerorun
