// A JSON text as a tree in which every key and value knows its place in the file. Owned by whoever reads it,
// a plain value; any thread.
//
// Beside JSON it takes `//`, `#` and `/* */` comments, trailing commas and a UTF-8 byte order mark. Duplicate
// keys, NaN and Infinity, and nesting deeper than `max_nesting` are refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostics.h"

namespace zerorun {

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

/// The tree of `text`, whose root is always an object. Nothing if the text is malformed: the first such place
/// is then reported. Duplicate keys are reported too, and the first of them is kept.
std::optional<Value> read_document(std::string_view text, Diagnostics& diagnostics);

/// How a message shows a value: scalars as written, "an array", "an object".
std::string describe(const Value& value);

}  // namespace zerorun
