// The facts about a key as text, for messages, the JSON Schema and the reference page. Pure functions; any
// thread.
#pragma once

#include <string>
#include <string_view>

#include "config/key_fact.h"

namespace zerorun {

/// What a value of one type is.
struct TypeWords {
  std::string_view name;      // in the reference page; empty: the choices
  std::string_view expected;  // in a message; of a list: its items
  std::string_view advice;    // what to write instead of something else
  std::string_view json;      // JSON Schema's types, space-separated; empty: any
};

const TypeWords& words_of(KeyType type);

/// Such as "at least 1" or "from 0 to 3"; empty if all numbers are in the range.
std::string range_in_words(const Range& range);

/// Adds a capital letter and a full stop; empty stays empty.
std::string sentence(std::string_view text);

/// Turns a space-separated list into "a, b or c", with each word between `quote`s.
std::string words_or(std::string_view list, std::string_view quote);

/// The status of a key that is not simply supported, such as "not offered: REASON"; else empty.
std::string status_in_words(const KeyFact& fact, std::string_view quote = {});

/// The condition on which a section or an object with a switch has an effect, such as "enabled is true";
/// empty without a switch.
std::string switch_in_words(const KeyFact& fact, std::string_view quote);

/// Everything about a key but its type and range, in sentences. Keys and values are put between `quote`s.
std::string description_of(const KeyFact& fact, std::string_view quote);

/// The key's choices that ZeroRun offers. A key that is not offered as a whole keeps all of them.
std::string offered_choices(const KeyFact& fact);

/// Those of them that are recognized in any case.
std::string offered_in_any_case(const KeyFact& fact);

/// The offered choice that replaces `word`, a choice that is not offered; empty if the row names none.
std::string_view nearest_offered(const KeyFact& fact, std::string_view word);

}  // namespace zerorun
