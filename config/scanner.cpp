#include "config/scanner.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace zerorun {
namespace {

constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";

std::optional<TokenKind> punctuation(char c) {
  switch (c) {
    case '{':
      return TokenKind::open_object;
    case '}':
      return TokenKind::close_object;
    case '[':
      return TokenKind::open_array;
    case ']':
      return TokenKind::close_array;
    case ',':
      return TokenKind::comma;
    case ':':
      return TokenKind::colon;
    default:
      return std::nullopt;
  }
}

bool ends_value(TokenKind kind) {
  return kind == TokenKind::close_object || kind == TokenKind::close_array || kind == TokenKind::string ||
         kind == TokenKind::word;
}

std::string hex_byte(char c) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02X", static_cast<unsigned char>(c));
  return text;
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) { result_.json = text; }

  ScannedText run() {
    skip_byte_order_mark();
    while (!result_.mistake && !done()) scan_one();
    result_.end = at_;
    if (result_.mistake) result_.json.resize(cut_);
    result_.json += '\n';
    return std::move(result_);
  }

 private:
  bool done() const { return at_.offset >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_.offset + ahead < text_.size() ? text_[at_.offset + ahead] : '\0';
  }
  bool next_is(std::string_view what) const { return text_.substr(at_.offset, what.size()) == what; }
  bool at_line_end() const { return done() || peek() == '\n' || peek() == '\r'; }
  bool at_comment() const { return peek() == '#' || next_is("//") || next_is("/*"); }

  /// Advances by one byte. A line ends with LF, CR LF or a lone CR; continuation bytes of a UTF-8 character
  /// add no column.
  void advance() {
    const char c = peek();
    ++at_.offset;
    if (c == '\n' || (c == '\r' && peek() != '\n')) {
      ++at_.line;
      at_.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++at_.column;
    }
  }

  /// `cut`: where the text is cut off, the start of the token that contains `at`.
  void fail(const Position& at, std::size_t cut, std::string expected, std::string found,
            std::string remedy) {
    cut_ = cut;
    result_.mistake = Mistake{at, "", std::move(expected), std::move(found), std::move(remedy)};
  }

  void skip_byte_order_mark() {
    if (next_is("\xFF\xFE") || next_is("\xFE\xFF")) {
      fail(at_, 0, "UTF-8 text", "the byte order mark of UTF-16", "save the file as UTF-8");
    } else if (next_is(utf8_mark)) {
      blank(0, utf8_mark.size());
      at_.offset = utf8_mark.size();
    }
  }

  void scan_one() {
    const char c = peek();
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      advance();
    } else if (at_comment()) {
      skip_comment();
    } else if (result_.tokens.size() >= max_tokens) {
      fail(at_, at_.offset, "at most " + std::to_string(max_tokens) + " names, values and signs", "more",
           "give a configuration of a reasonable size");
    } else if (c == '"') {
      scan_string();
    } else if (const auto kind = punctuation(c)) {
      scan_punctuation(*kind);
    } else {
      scan_word();
    }
  }

  void skip_comment() {
    const Position start = at_;
    if (next_is("/*")) {
      advance();
      advance();
      while (!done() && !next_is("*/")) advance();
      if (done())
        return fail(start, start.offset, "'*/' at the end of the comment", "the end of the file",
                    "close the comment");
      advance();
      advance();
    } else {
      while (!at_line_end()) advance();
    }
    blank(start.offset, at_.offset);
  }

  void scan_string() {
    const Position start = at_;
    advance();
    while (!at_line_end() && peek() != '"') {
      if (peek() == '\\') advance();
      if (!at_line_end()) advance();
    }
    if (at_line_end()) {
      return fail(start, start.offset, "a string that ends on its line",
                  shortened(text_.substr(start.offset, length(start))), "close it with a double quote");
    }
    advance();
    add(TokenKind::string, start);
  }

  void scan_punctuation(TokenKind kind) {
    const Position start = at_;
    const bool opens = kind == TokenKind::open_object || kind == TokenKind::open_array;
    const bool closes = kind == TokenKind::close_object || kind == TokenKind::close_array;
    if (opens && ++depth_ > max_nesting) {
      return fail(start, start.offset, "at most " + std::to_string(max_nesting) + " levels of nesting",
                  "one level more", "flatten the file");
    }
    if (closes) {
      if (depth_ > 0) --depth_;
      drop_trailing_comma();
    }
    advance();
    add(kind, start);
  }

  void scan_word() {
    const Position start = at_;
    while (!done() && !at_comment() && peek() != '"' && peek() != ' ' && peek() != '\t' && !at_line_end() &&
           !punctuation(peek())) {
      const auto byte = static_cast<unsigned char>(peek());
      if (byte < 0x20 || byte == 0x7f) {
        return fail(at_, start.offset, "text", "the byte " + hex_byte(peek()),
                    "remove it, or save the file as UTF-8");
      }
      advance();
    }
    add(TokenKind::word, start);
  }

  /// Removes the last comma of `[1, 2,]` and `{"a": 1,}`. In `[,]` or `[1,,]` the comma follows no value and
  /// stays, so that the parser refuses it.
  void drop_trailing_comma() {
    auto& tokens = result_.tokens;
    if (tokens.size() < 2 || tokens.back().kind != TokenKind::comma) return;
    if (!ends_value(tokens[tokens.size() - 2].kind)) return;
    const std::size_t offset = tokens.back().at.offset;
    blank(offset, offset + 1);
    tokens.pop_back();
  }

  std::size_t length(const Position& start) const { return at_.offset - start.offset; }
  void add(TokenKind kind, const Position& start) { result_.tokens.push_back({kind, start, length(start)}); }
  void blank(std::size_t begin, std::size_t end) {
    std::fill(result_.json.begin() + static_cast<std::ptrdiff_t>(begin),
              result_.json.begin() + static_cast<std::ptrdiff_t>(end), ' ');
  }

  std::string_view text_;
  Position at_;
  std::size_t depth_ = 0;
  std::size_t cut_ = 0;
  ScannedText result_;
};

}  // namespace

ScannedText scan(std::string_view text) {
  return Scanner(text).run();
}

}  // namespace zerorun
