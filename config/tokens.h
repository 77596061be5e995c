// Splits a JSON text with comments into tokens. Skips white space, a UTF-8 byte order mark, and comments:
// `//` and `#` up to the end of the line, and `/* */`. Owned by the read of one text; any thread.
#pragma once

#include <string_view>

#include "config/diagnostics.h"

namespace zerorun::config {

enum class TokenKind { open_object, close_object, open_array, close_array, comma, colon, string, word, end };

struct Token {
  TokenKind kind = TokenKind::end;
  Position at;
  std::string_view text;  // as written, with quotes; not checked to be valid JSON
};

/// Thrown to stop reading a text. The thrower leaves `mistake.path` empty; DocumentReader fills it in.
struct SyntaxError {
  Mistake mistake;
};

class Tokens {
 public:
  /// Throws SyntaxError for UTF-16. `text` must outlive this.
  explicit Tokens(std::string_view text);

  /// Returns the next token; TokenKind::end at the end of the text. Throws SyntaxError for a character that
  /// cannot begin a token, a comment or string that is not closed, and too many tokens.
  Token next();

 private:
  bool done() const { return at_.offset >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_.offset]; }
  bool next_is(std::string_view what) const { return text_.substr(at_.offset, what.size()) == what; }
  bool at_line_end() const { return done() || peek() == '\n' || peek() == '\r'; }
  bool at_comment() const { return peek() == '#' || next_is("//") || next_is("/*"); }
  std::string_view text_from(const Position& start) const;
  void advance();
  void skip_comment();
  void skip_string();
  void skip_word();

  std::string_view text_;
  Position at_;
  std::size_t count_ = 0;
};

}  // namespace zerorun::config
