// The rules of the JSON Schema that involve several keys. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun::config {

/// Returns a schema that accepts only those values of a refused key that leave its feature off, such as the
/// default.
nlohmann::ordered_json asks_for_nothing(const KeyFact& refused);

/// Whether a section that contains the key has the switch `enabled`.
bool has_outer_switch(const KeyFact& fact);

/// Returns a regular expression that matches any of `words`, which are choices of the key `choice`. If the
/// reader ignores the case of a choice, so does the expression.
std::string choice_pattern(const KeyFact& choice, std::string_view words);

/// Returns schemas that a section must all satisfy; "" is the top level. They require one name for each key,
/// allow only parameters of the chosen optimizer or scheduler, and cover keys that need or exclude each
/// other.
std::vector<nlohmann::ordered_json> section_rules(std::string_view section);

}  // namespace zerorun::config
