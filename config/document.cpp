#include "config/document.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "config/tokens.h"

namespace zerorun::config {
namespace {

using Json = nlohmann::json;

/// The state of the parser. It determines which tokens are allowed next.
enum class Place { root, after_root, key, colon, value, item, after_member, after_item };

constexpr std::string_view expected_at[] = {  // indexed by Place
    "an object in braces",
    "the end of the file",
    "a key in double quotes",
    "':' after the key",
    "a value",
    "a value",
    "',' or '}'",
    "',' or ']'"};

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

/// Returns the code point of the first character of a UTF-8 text, such as "U+201C". If no character can start
/// with the first byte, returns that byte, such as "0x80".
std::string code_point(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
  unsigned value = length == 1 ? first : first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < std::min(length, text.size()); ++i) {
    value = (value << 6) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  char shown[16];
  std::snprintf(shown, sizeof shown, length == 1 ? "0x%02X" : "U+%04X", value);
  return shown;
}

std::string remedy_for_word(std::string_view word, Place place) {
  constexpr std::array not_finite = {"NaN", "nan", "Infinity", "inf", "-Infinity", "-inf", "-NaN", "Inf"};
  constexpr std::array python = {"True", "False", "None", "TRUE", "FALSE", "NULL", "Null"};
  const char first = word.front();
  if (first == '\'') return "use double quotes";
  if (!is_ascii(first)) {
    return "the character " + code_point(word) + " has no meaning here: write plain double quotes and spaces";
  }
  if (place == Place::key) return "put the key in double quotes: " + in_quotes(word);
  if (place == Place::colon) return "write ':' between key and value";
  if (place == Place::root) return "begin with '{'";
  if (std::ranges::find(not_finite, word) != not_finite.end()) return "write a finite number";
  if (std::ranges::find(python, word) != python.end()) return "write true, false or null in lower case";
  if (std::isdigit(static_cast<unsigned char>(first)) || first == '-' || first == '+' || first == '.') {
    return "write a decimal number such as 8, 0.5 or 5e8";
  }
  return "write a number, true, false, or text in double quotes";
}

/// Returns the part of nlohmann/json's message that says why a string is malformed, without the message's
/// prefix and the quoted input.
std::string inner_reason(std::string_view reason) {
  const auto begin = reason.find(" - ");
  if (begin != std::string_view::npos) reason.remove_prefix(begin + 3);
  return std::string(reason.substr(0, reason.find("; last read")));
}

/// Reads a text by recursive descent. nlohmann/json parses single strings, numbers and words.
class DocumentReader {
 public:
  DocumentReader(std::string_view text, Diagnostics& diagnostics)
      : tokens_(text), diagnostics_(diagnostics) {}

  Value read() try {
    next(Place::root);
    if (token_.kind == TokenKind::end) {
      fail("an object in braces", "an empty file",
           "write a configuration, at least {\"train_batch_size\": 8}");
    }
    Value root = read_value();
    next(Place::after_root);
    if (token_.kind != TokenKind::end) refuse();
    return root;
  } catch (SyntaxError& error) {
    error.mistake.path = path();
    throw;
  }

 private:
  /// An object or array that has been opened and not yet closed.
  struct Frame {
    Value value;
    std::string key;  // key of the member that is being read
  };

  void next(Place place) {
    place_ = place;
    before_ = token_.text;
    token_ = tokens_.next();
  }

  bool closes() const {
    return token_.kind == TokenKind::close_object || token_.kind == TokenKind::close_array;
  }

  /// The path of the value that is being read. It is built only when a message needs it: keys may be very
  /// long, so it would take too much time to build the path of every value.
  std::string path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      if (frame.value.kind == ValueKind::array) {
        path += "[" + std::to_string(frame.value.items.size()) + "]";
      } else if (!frame.key.empty()) {
        path += (path.empty() ? "" : ".") + shortened(frame.key);
      }
    }
    return path;
  }

  [[noreturn]] void fail(std::string_view expected, std::string found, std::string remedy) const {
    throw SyntaxError{{token_.at, "", std::string(expected), std::move(found), std::move(remedy)}};
  }

  /// Reports that the current token is not allowed in the current place.
  [[noreturn]] void refuse() const {
    const bool end = token_.kind == TokenKind::end;
    fail(expected_at[static_cast<std::size_t>(place_)], end ? "the end of the file" : shortened(token_.text),
         remedy());
  }

  std::string remedy() const {
    const std::string bracket_line = frames_.empty() ? "" : std::to_string(frames_.back().value.at.line);
    if (token_.kind == TokenKind::end) {
      return frames_.empty() ? "write what is missing" : "close the bracket of line " + bracket_line;
    }
    if (closes() && place_ == Place::value) return "write the value, or remove the key";
    if (closes() && !frames_.empty()) return "the innermost open bracket is that of line " + bracket_line;
    if (place_ == Place::after_root) return "remove what follows the closing brace";
    const bool wants_comma = place_ == Place::after_member || place_ == Place::after_item;
    if (wants_comma && token_.kind != TokenKind::colon) {
      return "put a comma after the value before it: " + shortened(before_) + ",";
    }
    if (token_.kind == TokenKind::word) return remedy_for_word(token_.text, place_);
    if (token_.kind == TokenKind::comma) return "remove the comma, or write what is missing before it";
    return place_ == Place::key ? "put the key in double quotes" : "write what is missing before it";
  }

  Value read_value() {
    switch (token_.kind) {
      case TokenKind::open_object:
        return read_inside(ValueKind::object);
      case TokenKind::open_array:
        return read_inside(ValueKind::array);
      case TokenKind::string:
      case TokenKind::word:
        return read_scalar();
      default:
        refuse();
    }
  }

  Value read_scalar() const {
    const Json json = parse_token();
    Value value;
    value.at = token_.at;
    value.literal = token_.text;
    if (json.is_boolean()) {
      value.kind = ValueKind::boolean;
      value.boolean = json.get<bool>();
    } else if (json.is_number()) {
      value.kind = ValueKind::number;
      value.number = json.get<double>();
    } else if (json.is_string()) {
      value.kind = ValueKind::string;
      value.text = json.get<std::string>();
    }
    return value;
  }

  /// Parses a string or a word.
  Json parse_token() const {
    // No JSON word starts with such a character. But nlohmann/json would accept a word after a byte order
    // mark.
    if (token_.kind == TokenKind::word && !is_ascii(token_.text.front())) refuse();
    try {
      return Json::parse(token_.text);
    } catch (const Json::out_of_range&) {
      fail("a number that a double can hold", shortened(token_.text), "write a smaller number");
    } catch (const Json::parse_error& error) {
      if (token_.kind == TokenKind::word) refuse();
      fail("a valid string", shortened(token_.text) + " (" + inner_reason(error.what()) + ")",
           "save the file as UTF-8 and escape control characters and backslashes");
    }
  }

  /// Reads an object or array, from its opening to its closing bracket.
  Value read_inside(ValueKind kind) {
    if (frames_.size() == max_nesting) {
      fail("at most " + std::to_string(max_nesting) + " levels of nesting", "one level more",
           "flatten the file");
    }
    frames_.emplace_back();
    frames_.back().value.kind = kind;
    frames_.back().value.at = token_.at;
    kind == ValueKind::object ? read_members() : read_items();
    Value value = std::move(frames_.back().value);
    frames_.pop_back();
    return value;
  }

  void read_members() {
    std::unordered_map<std::string, int> lines;
    next(Place::key);
    if (token_.kind == TokenKind::close_object) return;
    do {
      if (token_.kind != TokenKind::string) refuse();
      frames_.back().key = parse_token().get<std::string>();
      const Position key_at = token_.at;
      const auto [first, added] = lines.emplace(frames_.back().key, key_at.line);
      if (!added) {
        diagnostics_.report(
            {key_at, path(), "each key once in its object",
             std::string(token_.text) + " again, first on line " + std::to_string(first->second),
             "keep one of the two"});
      }
      next(Place::colon);
      if (token_.kind != TokenKind::colon) refuse();
      next(Place::value);
      Value value = read_value();
      Frame& frame = frames_.back();
      if (added) frame.value.members.push_back({frame.key, key_at, std::move(value)});
      frame.key.clear();
    } while (goes_on(TokenKind::close_object, Place::key, Place::after_member));
  }

  void read_items() {
    next(Place::item);
    if (token_.kind == TokenKind::close_array) return;
    do {
      Value value = read_value();
      frames_.back().value.items.push_back(std::move(value));
    } while (goes_on(TokenKind::close_array, Place::item, Place::after_item));
  }

  /// Reads the next token after a member or an item. Returns false at the closing bracket. Accepts a trailing
  /// comma before that bracket.
  bool goes_on(TokenKind close, Place begin, Place after) {
    next(after);
    if (token_.kind == TokenKind::comma) {
      next(begin);
      if (!closes()) return true;
      place_ = after;
    }
    if (token_.kind != close) refuse();
    return false;
  }

  Tokens tokens_;
  Diagnostics& diagnostics_;
  Token token_;
  std::string_view before_;  // text of the token before `token_`
  Place place_ = Place::root;
  std::vector<Frame> frames_;
};

}  // namespace

const Value* Value::find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &DocumentMember::key);
  return found == members.end() ? nullptr : &found->value;
}

std::optional<Value> read_document(std::string_view text, Diagnostics& diagnostics) try {
  Value root = DocumentReader(text, diagnostics).read();
  if (root.kind == ValueKind::object) return root;
  diagnostics.report({root.at, "", "an object in braces", describe(root),
                      "put the settings in one object: {\"key\": value}"});
  return std::nullopt;
} catch (const SyntaxError& error) {
  diagnostics.report(error.mistake);
  return std::nullopt;
}

std::string describe(const Value& value) {
  if (value.kind == ValueKind::array) return "an array";
  return value.kind == ValueKind::object ? "an object" : shortened(value.literal);
}

}  // namespace zerorun::config
