// Checks whether a value fits the row of its key, and what it means. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "config/config_types.h"
#include "config/document.h"
#include "config/settings.h"

namespace zerorun {

enum class Fit {
  value,
  nothing,    // null or false, with the same meaning as leaving the key out
  automatic,  // "auto", and the key accepts it
  refused
};

struct ValueCheck {
  Fit fit = Fit::refused;
  SettingValue value = {};  // monostate for what settings do not keep: lists of texts, objects
  /// How a value in an unusual form was understood; empty if the form is right.
  std::string understood = {};
  Severity severity = Severity::note;  // of `understood`
  // Of a refused value:
  std::optional<std::size_t> item = {};  // the item of the array that is wrong
  std::string expected = {};
  std::string found = {};
  std::string remedy = {};
};

ValueCheck check_value(const KeyFact& fact, const Value& value);

/// The same for a value that the program gives in place of "auto".
ValueCheck check_argument(const KeyFact& fact, const Arguments::mapped_type& argument);

/// What a message gives as expected, such as "an integer of at least 1".
std::string expected_of(const KeyFact& fact);

/// The row's own advice on what to write, or else one for its type.
std::string advice_of(const KeyFact& fact);

/// The choice that `text` stands for, as the table spells it, or empty.
std::string match_choice(const KeyFact& fact, std::string_view text);

}  // namespace zerorun
