// Makes the reference page of ds_config.json from the key table. Pure function; any thread.
#pragma once

#include <string>

namespace zerorun::config {

/// The text of docs/ds_config.md.
std::string config_reference();

}  // namespace zerorun::config
