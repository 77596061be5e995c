// Finds the tokens of a JSON text with comments, and where each begins: the positions that nlohmann/json does
// not give. Pure function of the text; any thread.
//
// Comments (`//`, `#`, `/* */`) and trailing commas are blanked byte for byte, so that what is left is plain
// JSON with every offset unchanged. Whether the tokens make sense together is for the parser that reads
// `json`.
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
  std::string json;           // ends with a line break of its own; cut off where `mistake` begins
  std::vector<Token> tokens;  // without trailing commas
  Position end;
  std::optional<Mistake> mistake;  // the first thing that is no token at all; its path is left empty
};

/// Brackets within brackets, at most. Deeper files are refused, so that no reader of the tree can run out of
/// stack.
inline constexpr std::size_t max_nesting = 100;

/// Tokens of a file, at most: no configuration has nearly so many, and a tree of them takes a few hundred
/// megabytes.
inline constexpr std::size_t max_tokens = 1'000'000;

ScannedText scan(std::string_view text);

}  // namespace zerorun
