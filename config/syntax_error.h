// Explains a syntax error in terms of the user's file: what was expected, what was found, what to do. Pure
// function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "config/scanner.h"

namespace zerorun {

/// The parser refused `scanned` at token number `index` (tokens.size(): at the end of the file). `reason` is
/// the parser's own text; it is quoted only if the token alone does not show what is wrong.
Mistake explain_syntax_error(const ScannedText& scanned, std::size_t index, std::string_view reason);

}  // namespace zerorun
