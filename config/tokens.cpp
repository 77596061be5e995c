#include "config/tokens.h"

#include <cstdio>
#include <utility>

namespace zerorun::config {
namespace {

constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";
constexpr std::string_view spaces = " \t\n\r";
constexpr std::string_view punctuation = "{}[],:";  // indexed by TokenKind

// The maximum number of tokens in a file. A tree of this many tokens takes a few hundred megabytes, and real
// configurations have far fewer.
constexpr std::size_t max_tokens = 1'000'000;

bool is_one_of(std::string_view list, char c) {
  return list.find(c) != std::string_view::npos;
}

std::string hex_byte(char c) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02X", static_cast<unsigned char>(c));
  return text;
}

[[noreturn]] void fail(const Position& at, std::string expected, std::string found, std::string remedy) {
  throw SyntaxError{{at, "", std::move(expected), std::move(found), std::move(remedy)}};
}

}  // namespace

Tokens::Tokens(std::string_view text) : text_(text) {
  if (next_is("\xFF\xFE") || next_is("\xFE\xFF")) {
    fail(at_, "UTF-8 text", "the byte order mark of UTF-16", "save the file as UTF-8");
  }
  if (next_is(utf8_mark)) at_.offset = utf8_mark.size();
}

Token Tokens::next() {
  while (!done() && (at_comment() || is_one_of(spaces, peek()))) {
    at_comment() ? skip_comment() : advance();
  }
  const Position start = at_;
  if (done()) return {TokenKind::end, start, {}};
  if (++count_ > max_tokens) {
    fail(at_, "at most " + std::to_string(max_tokens) + " names, values and punctuation marks", "more",
         "make the file smaller");
  }
  TokenKind kind = TokenKind::word;
  if (const auto index = punctuation.find(peek()); index != std::string_view::npos) {
    kind = static_cast<TokenKind>(index);
    advance();
  } else if (peek() == '"') {
    kind = TokenKind::string;
    skip_string();
  } else {
    skip_word();
  }
  return {kind, start, text_from(start)};
}

std::string_view Tokens::text_from(const Position& start) const {
  return text_.substr(start.offset, at_.offset - start.offset);
}

/// Advances by one byte. A line ends with LF, CR LF or a lone CR. Continuation bytes of a UTF-8 character do
/// not advance the column.
void Tokens::advance() {
  const char c = peek();
  ++at_.offset;
  if (c == '\n' || (c == '\r' && peek() != '\n')) {
    ++at_.line;
    at_.column = 1;
  } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
    ++at_.column;
  }
}

void Tokens::skip_comment() {
  if (!next_is("/*")) {
    while (!at_line_end()) advance();
    return;
  }
  const Position start = at_;
  const auto end = text_.find("*/", at_.offset + 2);
  if (end == std::string_view::npos) {
    fail(start, "'*/' at the end of the comment", "the end of the file", "close the comment");
  }
  while (at_.offset < end + 2) advance();
}

void Tokens::skip_string() {
  const Position start = at_;
  advance();
  while (!at_line_end() && peek() != '"') {
    if (peek() == '\\') advance();
    if (!at_line_end()) advance();
  }
  if (at_line_end()) {
    fail(start, "a string that ends on its line", shortened(text_from(start)),
         "close it with a double quote");
  }
  advance();
}

void Tokens::skip_word() {
  while (!done() && !at_comment() && peek() != '"' && !is_one_of(spaces, peek()) &&
         !is_one_of(punctuation, peek())) {
    const auto byte = static_cast<unsigned char>(peek());
    if (byte < 0x20 || byte == 0x7f) {
      fail(at_, "text", "the byte " + hex_byte(peek()), "remove it, or save the file as UTF-8");
    }
    advance();
  }
}

}  // namespace zerorun::config
