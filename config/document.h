// A JSON text as a tree with the position of every key and value in the file. A plain value, owned by the
// caller; any thread.
//
// Beyond JSON it accepts `//`, `#` and `/* */` comments, trailing commas and a UTF-8 byte order mark. It
// refuses duplicate keys, NaN and Infinity, and nesting deeper than `max_nesting`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostics.h"

namespace zerorun {

/// Maximum nesting of brackets. Deeper files are refused, so that no recursive reader of the tree runs out of
/// stack.
inline constexpr std::size_t max_nesting = 100;

enum class ValueKind { null, boolean, number, string, array, object };

struct Member;

struct Value {
  ValueKind kind = ValueKind::null;
  Position at;
  std::string literal;  // null, booleans, numbers, strings: as written in the file, quotes included
  bool boolean = false;
  double number = 0.0;
  std::string text;             // of a string, decoded
  std::vector<Value> items;     // of an array
  std::vector<Member> members;  // of an object, in the order of the file

  /// The member's value, or null.
  const Value* find(std::string_view key) const;
};

struct Member {
  std::string key;  // decoded
  Position key_at;
  Value value;
};

/// The tree of `text`, whose root is always an object. If the text is malformed, reports the first error and
/// returns nothing. Also reports duplicate keys, of which it keeps the first.
std::optional<Value> read_document(std::string_view text, Diagnostics& diagnostics);

/// How a message shows a value: scalars as written, "an array", "an object".
std::string describe(const Value& value);

}  // namespace zerorun
