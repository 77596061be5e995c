// A JSON text as a tree that records the position of every key and value. A plain value, owned by the caller;
// any thread.
//
// In addition to JSON it accepts `//`, `#` and `/* */` comments, trailing commas and a UTF-8 byte order mark.
// It refuses duplicate keys, NaN, Infinity, and nesting deeper than `max_nesting`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostics.h"

namespace zerorun::config {

/// The maximum nesting of brackets. The limit keeps recursive functions on the tree from running out of
/// stack.
inline constexpr std::size_t max_nesting = 100;

enum class ValueKind { null, boolean, number, string, array, object };

struct DocumentMember;

struct Value {
  ValueKind kind = ValueKind::null;
  Position at;
  std::string literal;  // null, boolean, number, string: the text in the file, with quotes
  bool boolean = false;
  double number = 0.0;
  std::string text;                     // string: decoded
  std::vector<Value> items;             // array
  std::vector<DocumentMember> members;  // object: in file order

  /// The value of the member `key`, or null if there is none.
  const Value* find(std::string_view key) const;
};

struct DocumentMember {
  std::string key;  // decoded
  Position key_at;
  Value value;
};

/// Parses `text` into a tree whose root is an object. If the text is malformed, reports the first error and
/// returns nothing. Duplicate keys are reported too; the first of them is kept.
std::optional<Value> read_document(std::string_view text, Diagnostics& diagnostics);

/// Describes a value in a message: scalars as written, else "an array" or "an object".
std::string describe(const Value& value);

}  // namespace zerorun::config
