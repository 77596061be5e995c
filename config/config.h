// Reads ds_config.json strictly. No LibTorch; any thread.
//
// `load_config` reads JSON with `//` and `#` comments and trailing commas for a run that is about to start.
// It throws one UserError for all mistakes of a file, which names, for each, file:line:column, the JSON path,
// what was expected, what was found, and the remedy. To check a file without running it, see config/check.h.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/config_types.h"

namespace zerorun {

/// Reads and resolves `file`. Throws UserError.
Config load_config(const std::filesystem::path& file, const LoadOptions& options);
Config load_config(const std::filesystem::path& file, int world_size);

/// Reads and resolves `text`; `origin` stands for the file name in messages. Throws UserError.
Config parse_config(std::string_view text, const std::string& origin, const LoadOptions& options);
Config parse_config(std::string_view text, const std::string& origin, int world_size);

}  // namespace zerorun
