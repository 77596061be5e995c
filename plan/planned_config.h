// The configuration of a plan. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_types.h"

namespace zerorun {

/// A configuration's text as JSON, without its comments. Throws UserError if it is no configuration.
nlohmann::ordered_json as_json(const std::string& text, const std::string& origin);

/// Reads a configuration for a plan: values that only the program knows, and on which no size depends, need
/// not be among options.arguments. Throws UserError.
Config planned_config(const std::string& text, const std::string& origin, LoadOptions options);

}  // namespace zerorun
