// Puts a syntax error into the words of the user's file: what belongs at this place, what stands there, what
// to do. Pure function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "config/scanner.h"

namespace zerorun {

/// The parser refused `scanned` at token number `index` (tokens.size(): at the end of the file). `reason` is
/// the parser's own text; it is only quoted where the token alone does not tell what is wrong with it.
Mistake explain_syntax_error(const ScannedText& scanned, std::size_t index, std::string_view reason);

}  // namespace zerorun
