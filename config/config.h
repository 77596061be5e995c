// Reads ds_config.json for a run. No LibTorch; any thread.
//
// Accepts JSON with `//`, `#` and `/* */` comments and trailing commas. All mistakes of a file are reported
// in one UserError, which gives for each mistake file:line:column, the JSON path, the expected and the found
// value, and a remedy. To check a file without running it, use config/check.h.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/config_types.h"

namespace zerorun {

/// Reads and resolves `file`. Throws UserError.
Config load_config(const std::filesystem::path& file, const LoadOptions& options);
Config load_config(const std::filesystem::path& file, int world_size);

/// Like load_config(), for `text`. `origin` replaces the file name in messages. Throws UserError.
Config parse_config(std::string_view text, const std::string& origin, const LoadOptions& options);
Config parse_config(std::string_view text, const std::string& origin, int world_size);

}  // namespace zerorun
