// Texts about a key for messages, the JSON Schema and the reference page. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "config/key_fact.h"

namespace zerorun::config {

/// The words that describe one type of value.
struct TypeWords {
  std::string_view name;      // in the reference page; empty: the choices are listed instead
  std::string_view expected;  // in messages; for list types it describes the items
  std::string_view advice;    // what to write instead of a wrong value
  std::string_view json;      // types in JSON Schema, space-separated; empty: any
};

const TypeWords& words_of(KeyType type);

/// For example "at least 1" or "from 0 to 3"; empty if the range has no bounds.
std::string range_in_words(const ValueRange& range);

/// Makes a sentence: capitalizes the first letter and adds a full stop. Empty stays empty.
std::string sentence(std::string_view text);

/// Turns a space-separated list into "a, b or c", each word enclosed in `quote`.
std::string words_or(std::string_view list, std::string_view quote);

/// Why the key has no effect or is not supported. Says so if DeepSpeed has removed the key.
std::string reason_of(const KeyFact& fact);

/// Describes the key's status, such as "not supported: REASON"; empty for a supported key.
std::string status_in_words(const KeyFact& fact, std::string_view quote = {});

/// Describes when a section or object with a switch has an effect, such as "enabled is true"; empty without a
/// switch.
std::string switch_in_words(const KeyFact& fact, std::string_view quote);

/// Describes everything about a key except its type and range, in sentences. Keys and values are enclosed in
/// `quote`.
std::string description_of(const KeyFact& fact, std::string_view quote);

/// The choices that ZeroRun supports. For a key that is not supported at all, these are all of its choices.
std::string supported_choices(const KeyFact& fact);

/// Those choices among supported_choices() that are matched case-insensitively.
std::string supported_in_any_case(const KeyFact& fact);

/// The supported choice that replaces `word`, a choice that is not supported; empty if the row has no
/// replacement.
std::string_view nearest_supported(const KeyFact& fact, std::string_view word);

}  // namespace zerorun::config
