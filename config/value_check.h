// Checks a value against the row of its key and converts it. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "config/config_types.h"
#include "config/document.h"
#include "config/settings.h"

namespace zerorun::config {

enum class Fit {
  value,
  nothing,    // null or false, with the same effect as leaving the key out
  automatic,  // "auto", and the key accepts it
  refused
};

struct ValueCheck {
  Fit fit = Fit::refused;
  SettingValue value = {};  // monostate for values that settings do not keep: lists of texts, objects
  /// How a value in an unusual form was read; empty for the usual form.
  std::string understood = {};
  Severity severity = Severity::note;  // of `understood`
  // The following fields are for refused values:
  std::optional<std::size_t> item = {};  // index of the wrong item of an array
  std::string expected = {};
  std::string found = {};
  std::string remedy = {};
};

ValueCheck check_value(const KeyFact& fact, const Value& value);

/// Like check_value(), for a value that the program passes in place of "auto".
ValueCheck check_argument(const KeyFact& fact, const Arguments::mapped_type& argument);

/// Returns the expected value for a message, such as "an integer of at least 1".
std::string expected_of(const KeyFact& fact);

/// Returns what to write instead: the row's own advice, or else general advice for its type.
std::string advice_of(const KeyFact& fact);

/// Returns the choice that `text` matches, as the table spells it; empty if it matches none.
std::string match_choice(const KeyFact& fact, std::string_view text);

}  // namespace zerorun::config
