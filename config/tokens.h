// Splits a JSON text with comments into its tokens. Owned by one read of one text; any thread.
//
// Skips white space, a UTF-8 byte order mark, and comments: `//` and `#` to the end of the line, `/* */`.
#pragma once

#include <string_view>

#include "config/diagnostics.h"

namespace zerorun {

enum class TokenKind { open_object, close_object, open_array, close_array, comma, colon, string, word, end };

struct Token {
  TokenKind kind = TokenKind::end;
  Position at;
  std::string_view text;  // as written, quotes included; whether it is valid JSON is not checked
};

/// Ends the reading of a text. `mistake.path` is empty where tokens are read.
struct SyntaxError {
  Mistake mistake;
};

class Tokens {
 public:
  /// Throws SyntaxError for UTF-16. `text` must outlive this.
  explicit Tokens(std::string_view text);

  /// The next token, TokenKind::end at the end of the text. Throws SyntaxError for what begins no token, for
  /// a comment or string that does not end, and for a text with too many tokens.
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

}  // namespace zerorun
