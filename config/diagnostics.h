// Errors, warnings and notes about one configuration file. They are collected while the file is read and
// reported together, sorted by line. Owned by the load of one file and used only by its thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::config {

/// A position in a text. `line` and `column` count from 1, and `offset` counts bytes from the start of the
/// file. A column is one character: a tab or a multi-byte UTF-8 character is one column.
struct Position {
  std::size_t offset = 0;
  int line = 1;
  int column = 1;
};

/// Printed as "PATH: expected EXPECTED, found FOUND; REMEDY".
struct Mistake {
  Position at;
  std::string path;  // empty: the top level of the file
  std::string expected;
  std::string found;
  std::string remedy;
};

enum class Severity {
  error,    // the file is refused
  warning,  // the setting should be written differently, or asks for a feature that is not supported
  note      // the setting is accepted; the text says what its effect is
};

std::string_view name_of(Severity severity);

struct Diagnostic {
  Severity severity = Severity::error;
  Mistake mistake;   // add_message() sets only `at` and `path`
  std::string text;  // the message after the path

  const Position& at() const { return mistake.at; }
};

class Diagnostics {
 public:
  /// `origin` is the name of the file in messages, and `text` its content.
  Diagnostics(std::string origin, std::string_view text) : origin_(std::move(origin)), text_(text) {}

  void report(Mistake mistake, Severity severity = Severity::error);
  void add_message(Severity severity, const Position& at, std::string_view path, std::string_view text);

  bool any(Severity severity) const { return count_of(severity) > 0; }
  /// Whether another message of this severity would be kept. To bound memory, only the first 1000 messages of
  /// each severity are kept.
  bool keeps(Severity severity) const;
  /// How many messages of this severity were not kept.
  std::size_t left_out(Severity severity) const;
  /// "ORIGIN: and N more errors", or empty if all messages were kept.
  std::string left_out_line(Severity severity) const;
  /// The kept messages, in file order.
  std::vector<Diagnostic> messages() const;
  const std::string& origin() const { return origin_; }

  /// "ORIGIN:LINE:COLUMN: SEVERITY: PATH: TEXT"
  std::string headline(const Diagnostic& diagnostic) const;
  /// The headline, followed by the source line with a caret under the position.
  std::string render(const Diagnostic& diagnostic) const;

  /// Throws one UserError with all errors in file order, if there are any.
  void throw_if_any() const;

 private:
  void add(Diagnostic diagnostic);
  std::size_t count_of(Severity severity) const { return counts_[static_cast<std::size_t>(severity)]; }
  std::string source_line(const Position& at) const;

  std::string origin_;
  std::string text_;
  std::vector<Diagnostic> messages_;
  std::array<std::size_t, 3> counts_{};  // by severity, including messages that were not kept
};

inline constexpr std::size_t max_shown_bytes = 60;

/// Returns `text` cut to `max_bytes`, with "..." appended if it was cut. Never cuts inside a UTF-8 character.
std::string shortened(std::string_view text, std::size_t max_bytes = max_shown_bytes);

/// `shortened(text)` in double quotes.
std::string in_quotes(std::string_view text);

}  // namespace zerorun::config
