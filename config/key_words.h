// The facts of a key in words, for those who read about keys: the JSON Schema and the reference page. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "config/key_fact.h"

namespace zerorun {

/// With a capital letter and a full stop; empty stays empty.
std::string sentence(std::string_view text);

/// "a, b or c" of a space-separated list, each between `quote`s.
std::string words_or(std::string_view list, std::string_view quote);

/// What becomes of a key that is not simply supported, such as "not offered: REASON"; empty if it is.
std::string status_in_words(const KeyFact& fact);

/// When a section or an object with a switch has an effect, such as "enabled is true"; empty without a
/// switch.
std::string switch_in_words(const KeyFact& fact, std::string_view quote);

/// Those of the key's choices that ZeroRun offers. A key that is not offered as a whole has them all.
std::string offered_choices(const KeyFact& fact);

/// The choice that ZeroRun offers which is nearest to `word`, one that it does not; empty if the row names
/// none.
std::string_view nearest_offered(const KeyFact& fact, std::string_view word);

/// The row that says what the value of a key may be: for an old name that of the present one, unless the two
/// differ in form (`cpu_offload` is a boolean, `offload_optimizer` a section).
const KeyFact& row_of_value(const KeyFact& fact);

}  // namespace zerorun
