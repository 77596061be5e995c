// The JSON Schema (draft-07) of ds_config.json, made from the key table. Editors complete and check against
// it, and tests hold the reader to it. Pure function; any thread.
#pragma once

#include <string>

namespace zerorun {

/// The text of schemas/ds_config.schema.json.
std::string config_schema();

}  // namespace zerorun
