// A configuration looked at without running it: what `zerorun config` works on. Owned by the caller; plain
// values.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "config/config_types.h"
#include "config/diagnostics.h"
#include "config/settings.h"

namespace zerorun {

struct CheckOptions {
  std::optional<int> world_size = {};       // without it the batch sizes are not multiplied
  std::optional<int64_t> hidden_size = {};  // for "auto", as in LoadOptions
  bool compat = false;  // unknown keys that nothing resembles are warnings, as old DeepSpeed took them
};

struct CheckedConfig {
  Settings settings;
  Diagnostics diagnostics;

  bool refused() const { return diagnostics.any(Severity::error); }
};

/// Reads `text` as load_config does, and never throws for what it says. "auto" may stay, for the program to
/// fill in.
CheckedConfig check_config(std::string_view text, const std::string& origin,
                           const CheckOptions& options = {});

/// The text of `file`, or of standard input if it is "-". Throws UserError if it cannot be read or holds more
/// than 16 MiB.
std::string read_config_file(const std::filesystem::path& file);

/// All supported settings as JSON with `//` comments that tell where each value comes from; a configuration
/// itself.
std::string show_settings(const Settings& settings);

}  // namespace zerorun
