// Makes the JSON Schema (draft-07) of ds_config.json from the key table. Editors use the schema to complete
// and check keys, and tests compare the reader with it. Pure function; any thread.
#pragma once

#include <string>

namespace zerorun::config {

/// The text of schemas/ds_config.schema.json.
std::string config_schema();

}  // namespace zerorun::config
