#include "config/syntax_error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <vector>

namespace zerorun {
namespace {

enum class Place { root, after_root, key, colon, value, item, after_member, after_item };

struct Context {
  Place place = Place::root;
  const Token* open = nullptr;  // the innermost bracket that is not closed
};

/// What the grammar expects after the first `count` tokens, which must be valid.
Context context_of(const std::vector<Token>& tokens, std::size_t count) {
  std::vector<const Token*> open;
  bool key_next = false;
  Place place = Place::root;
  const auto after_value = [&] {
    if (open.empty()) return Place::after_root;
    return open.back()->kind == TokenKind::open_object ? Place::after_member : Place::after_item;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const Token& token = tokens[i];
    switch (token.kind) {
      case TokenKind::open_object:
        open.push_back(&token);
        key_next = true;
        place = Place::key;
        break;
      case TokenKind::open_array:
        open.push_back(&token);
        key_next = false;
        place = Place::item;
        break;
      case TokenKind::close_object:
      case TokenKind::close_array:
        if (!open.empty()) open.pop_back();
        key_next = false;
        place = after_value();
        break;
      case TokenKind::comma:
        key_next = !open.empty() && open.back()->kind == TokenKind::open_object;
        place = key_next ? Place::key : Place::item;
        break;
      case TokenKind::colon:
        key_next = false;
        place = Place::value;
        break;
      case TokenKind::string:
      case TokenKind::word:
        place = key_next ? Place::colon : after_value();
        key_next = false;
        break;
    }
  }
  return {place, open.empty() ? nullptr : open.back()};
}

std::string expected_at(Place place) {
  switch (place) {
    case Place::root:
      return "an object in braces";
    case Place::after_root:
      return "the end of the file";
    case Place::key:
      return "a key in double quotes";
    case Place::colon:
      return "':' after the key";
    case Place::value:
    case Place::item:
      return "a value";
    case Place::after_member:
      return "',' or '}'";
    case Place::after_item:
      return "',' or ']'";
  }
  return "";
}

bool contains(const auto& words, std::string_view word) {
  for (const std::string_view candidate : words) {
    if (candidate == word) return true;
  }
  return false;
}

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

/// The first character of a UTF-8 text as "U+201C", or its first byte if it is none.
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

std::string_view spelling(const ScannedText& scanned, const Token& token) {
  return std::string_view(scanned.json).substr(token.at.offset, token.length);
}

std::string remedy_for_word(std::string_view word, Place place) {
  constexpr std::array not_finite = {"NaN", "nan", "Infinity", "inf", "-Infinity", "-inf", "-NaN", "Inf"};
  constexpr std::array python = {"True", "False", "None", "TRUE", "FALSE", "NULL", "Null"};
  if (word.front() == '\'') return "use double quotes";
  if (!is_ascii(word.front())) {
    return "the character " + code_point(word) + " has no meaning here: write plain double quotes and spaces";
  }
  if (place == Place::key) return "put the key in double quotes: " + in_quotes(word);
  if (place == Place::colon) return "write ':' between key and value";
  if (place == Place::root) return "begin with '{'";
  if (contains(not_finite, word)) return "write a finite number";
  if (contains(python, word)) return "write true, false or null in lower case";
  if (std::isdigit(static_cast<unsigned char>(word.front())) || word.front() == '-' || word.front() == '+' ||
      word.front() == '.') {
    return "write a decimal number such as 8, 0.5 or 5e8";
  }
  return "write a number, true, false, or text in double quotes";
}

/// `before`: the token in front of `token`, empty for the first.
std::string remedy_for(const Token& token, std::string_view text, std::string_view before,
                       const Context& context) {
  const bool wants_comma = context.place == Place::after_member || context.place == Place::after_item;
  const bool closes = token.kind == TokenKind::close_object || token.kind == TokenKind::close_array;
  if (closes && context.place == Place::value) return "write the value, or remove the key";
  if (closes && context.open) {
    return "the innermost open bracket is that of line " + std::to_string(context.open->at.line);
  }
  if (context.place == Place::after_root) return "remove what follows the closing brace";
  if (wants_comma && !closes && token.kind != TokenKind::colon)
    return "put a comma after the value before it: " + shortened(before) + ",";
  if (token.kind == TokenKind::word) return remedy_for_word(text, context.place);
  if (token.kind == TokenKind::comma) return "remove the comma, or write what is missing before it";
  if (context.place == Place::key) return "put the key in double quotes";
  return "write what is missing before it";
}

/// The part of nlohmann/json's message that says what is wrong inside a token, without its prefix and its
/// echo.
std::string inner_reason(std::string_view reason) {
  const auto begin = reason.find(" - ");
  if (begin != std::string_view::npos) reason.remove_prefix(begin + 3);
  return std::string(reason.substr(0, reason.find("; last read")));
}

}  // namespace

Mistake explain_syntax_error(const ScannedText& scanned, std::size_t index, std::string_view reason) {
  const Context context = context_of(scanned.tokens, std::min(index, scanned.tokens.size()));
  if (index >= scanned.tokens.size()) {
    if (scanned.mistake) return *scanned.mistake;
    if (scanned.tokens.empty()) {
      return {scanned.end, "", "an object in braces", "an empty file",
              "write a configuration, at least {\"train_batch_size\": 8}"};
    }
    const std::string opened = context.open
                                   ? "close the bracket of line " + std::to_string(context.open->at.line)
                                   : std::string("write what is missing");
    return {scanned.end, "", expected_at(context.place), "the end of the file", opened};
  }

  const Token& token = scanned.tokens[index];
  const std::string_view text = spelling(scanned, token);
  if (reason.find("number overflow") != std::string_view::npos) {
    return {token.at, "", "a number that a double can hold", shortened(text), "write a smaller number"};
  }
  const bool string_fits = context.place == Place::key || context.place == Place::value ||
                           context.place == Place::item || context.place == Place::root;
  if (token.kind == TokenKind::string && string_fits &&
      reason.find("invalid string") != std::string_view::npos) {
    return {token.at, "", "a valid string", shortened(text) + " (" + inner_reason(reason) + ")",
            "save the file as UTF-8 and escape control characters and backslashes"};
  }
  return {token.at, "", expected_at(context.place), shortened(text),
          remedy_for(token, text, index == 0 ? "" : spelling(scanned, scanned.tokens[index - 1]), context)};
}

}  // namespace zerorun
