// Makes the JSON Schema (draft-07) of ds_config.json from the key table. Editors use the schema to complete
// keys and to check the type, the range and the words of each value. It has none of the rules between keys,
// which are in config/sections.h. Pure function; any thread.
#pragma once

#include <string>

namespace zerorun::config {

/// The text of schemas/ds_config.schema.json.
std::string config_schema();

}  // namespace zerorun::config
