// Errors, warnings and notes about one configuration file: collected while it is read, reported together,
// sorted by line. Owned by one load of one file and used only by the thread that loads it.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// A place in a text. Lines and columns count from 1; a column counts characters (a tab is one, so is any
/// multi-byte UTF-8 character), the offset counts bytes from the start of the file.
struct Position {
  std::size_t offset = 0;
  int line = 1;
  int column = 1;
};

/// Reads as "PATH: expected EXPECTED, found FOUND; REMEDY".
struct Mistake {
  Position at;
  std::string path;  // empty: the top level of the file
  std::string expected;
  std::string found;
  std::string remedy;
};

enum class Severity {
  error,    // the file is refused
  warning,  // understood, but better written otherwise; or requested and not offered
  note      // accepted; the text says what becomes of it
};

std::string_view name_of(Severity severity);

struct Diagnostic {
  Severity severity = Severity::error;
  Mistake mistake;   // warnings and notes have only `at` and `path`, unless they are tolerated mistakes
  std::string text;  // the message after the path

  const Position& at() const { return mistake.at; }
};

class Diagnostics {
 public:
  /// `origin` stands for the file in every message; `text` is the file's content.
  Diagnostics(std::string origin, std::string_view text) : origin_(std::move(origin)), text_(text) {}

  void report(Mistake mistake, Severity severity = Severity::error);
  void add_message(Severity severity, const Position& at, std::string_view path, std::string_view text);

  bool any(Severity severity) const { return count_of(severity) > 0; }
  /// Whether another message of this severity would be kept. Only the first thousand of each severity are,
  /// to bound memory.
  bool keeps(Severity severity) const;
  /// How many messages of this severity were not kept.
  std::size_t left_out(Severity severity) const;
  /// "ORIGIN: and N more errors", or empty if none was left out.
  std::string left_out_line(Severity severity) const;
  /// The messages that were kept, in the order of the file.
  std::vector<Diagnostic> messages() const;
  const std::string& origin() const { return origin_; }

  /// "ORIGIN:LINE:COLUMN: SEVERITY: PATH: TEXT"
  std::string headline(const Diagnostic& diagnostic) const;
  /// The headline, then the line of the file with a caret under the place.
  std::string render(const Diagnostic& diagnostic) const;

  /// Throws one UserError with all errors, in the order of the file; returns if there is none.
  void throw_if_any() const;

 private:
  void add(Diagnostic diagnostic);
  std::size_t count_of(Severity severity) const { return counts_[static_cast<std::size_t>(severity)]; }
  std::string source_line(const Position& at) const;

  std::string origin_;
  std::string text_;
  std::vector<Diagnostic> messages_;
  std::array<std::size_t, 3> counts_{};  // by severity, including those that were not kept
};

inline constexpr std::size_t max_shown_bytes = 60;

/// `text` cut to a length that fits a message, never inside a UTF-8 character.
std::string shortened(std::string_view text, std::size_t max_bytes = max_shown_bytes);

/// `shortened(text)` in double quotes.
std::string in_quotes(std::string_view text);

}  // namespace zerorun
