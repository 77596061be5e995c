// Checks a configuration without running it, for `zerorun config`. Plain values, owned by the caller.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "config/config_types.h"
#include "config/diagnostics.h"
#include "config/settings.h"

namespace zerorun::config {

struct CheckOptions {
  std::optional<int> world_size = {};  // absent: batch sizes are checked, but a missing one is not computed
  std::optional<int64_t> hidden_size = {};  // resolves "auto", as in LoadOptions
  /// Replaced keys, and unknown keys that resemble no known key, are warnings instead of errors: old
  /// DeepSpeed versions accepted them.
  bool compat = false;
};

struct CheckedConfig {
  Settings settings;
  Diagnostics diagnostics;

  bool refused() const { return diagnostics.any(Severity::error); }
};

/// Reads `text` as load_config does, but reports mistakes in the diagnostics instead of throwing. "auto" may
/// stay without a value, for the program to fill in.
CheckedConfig check_config(std::string_view text, const std::string& origin,
                           const CheckOptions& options = {});

/// The ranks along two axes of the mesh, as far as the file names them: by zerorun.mesh, else by DeepSpeed's
/// keys. load_config() refuses a file that names other numbers in both.
struct NamedRanks {
  std::optional<int> tensor;
  std::optional<int> pipeline;
};
NamedRanks named_ranks(const Settings& settings);

/// The text of `file`, or of standard input if it is "-". Throws UserError if it cannot be read or holds more
/// than 16 MiB.
std::string read_config_file(const std::filesystem::path& file);

/// The settings that apply to a run, and the settings in the file that have no effect, as JSON. `//` comments
/// say where each value comes from. The result is a valid configuration itself.
std::string show_settings(const Settings& settings);

}  // namespace zerorun::config
