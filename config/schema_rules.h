// The rules of the JSON Schema that join several keys. Pure functions; any thread. For config/schema.cpp
// only: including this includes nlohmann/json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun {

/// A schema for the values of a refused key that request nothing, such as its default.
nlohmann::ordered_json asks_for_nothing(const KeyFact& refused);

/// Whether a section around the key has a switch that can disable it.
bool has_outer_switch(const KeyFact& fact);

/// A pattern for these words of the key's choices, in any case if the row allows that.
std::string choice_pattern(const KeyFact& choice, std::string_view words);

/// Schemas that a section ("" is the top level) must all satisfy: one name for each key, only parameters of
/// the named optimizer or scheduler, and keys that need or exclude each other.
std::vector<nlohmann::ordered_json> section_rules(std::string_view section);

}  // namespace zerorun
