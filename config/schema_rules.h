// What the JSON Schema says about keys together, where the rest of it says what each key may be. Pure
// functions; any thread. For config/schema.cpp only: whoever includes this includes nlohmann/json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun {

/// Holds for values of a refused key that ask for nothing, such as its default.
nlohmann::ordered_json asks_for_nothing(const KeyFact& refused);

/// Whether a switch around the key can put it out of effect.
bool has_outer_switch(const KeyFact& fact);

/// A pattern for exactly these words of the key's choices, in any case where the row says so.
std::string choice_pattern(const KeyFact& choice, std::string_view words);

/// Schemas that all hold for a section, "" being the top level: one name for one key, parameters of the
/// optimizer or scheduler that is named, and keys that need or exclude each other.
std::vector<nlohmann::ordered_json> section_rules(std::string_view section);

}  // namespace zerorun
