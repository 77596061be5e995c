// Collects the mistakes of one configuration file, so that all of them are told at once, sorted by line.
// Owned by one load of one file and used only by the thread that loads it.
#pragma once

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

class Diagnostics {
 public:
  /// `origin` stands for the file in every message.
  explicit Diagnostics(std::string origin) : origin_(std::move(origin)) {}

  void report(Mistake mistake) { mistakes_.push_back(std::move(mistake)); }
  bool empty() const { return mistakes_.empty(); }

  /// Something the user should know that is no mistake.
  void note(const Position& at, std::string_view path, std::string_view text);
  const std::vector<std::string>& notes() const { return notes_; }

  /// Throws one UserError with a line for each mistake, in the order of the file; returns if there is none.
  void throw_if_any() const;

 private:
  std::string origin_;
  std::vector<Mistake> mistakes_;
  std::vector<std::string> notes_;
};

/// `text` cut to a length that fits a message, never inside a UTF-8 character.
std::string shortened(std::string_view text);

/// `shortened(text)` in double quotes.
std::string quoted(std::string_view text);

}  // namespace zerorun
