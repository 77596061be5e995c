// Finds the tokens of a JSON text with comments and their positions, which nlohmann/json does not give. Pure
// function of the text; any thread.
//
// Comments (`//`, `#`, `/* */`) and trailing commas are blanked byte for byte, so that plain JSON remains,
// with every offset unchanged. The parser that reads `json` checks the grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostics.h"

namespace zerorun {

enum class TokenKind { open_object, close_object, open_array, close_array, comma, colon, string, word };

struct Token {
  TokenKind kind;
  Position at;
  std::size_t length;
};

struct ScannedText {
  std::string json;           // ends with an added line break; cut off where `mistake` begins
  std::vector<Token> tokens;  // without trailing commas
  Position end;
  std::optional<Mistake> mistake;  // the first text that is no token; its path is left empty
};

/// Maximum nesting of brackets. Deeper files are refused, so that no recursive reader of the tree runs out of
/// stack.
inline constexpr std::size_t max_nesting = 100;

/// Maximum tokens of a file: no configuration has nearly so many, and a tree of them takes a few hundred
/// megabytes.
inline constexpr std::size_t max_tokens = 1'000'000;

ScannedText scan(std::string_view text);

}  // namespace zerorun
