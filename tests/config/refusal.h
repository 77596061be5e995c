// Helpers for the tests of config/: the messages about a configuration as data, and the lines of data files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace zerorun::test {

/// One line of a refusal, taken apart: "ORIGIN:LINE:COLUMN: error: PATH: expected EXPECTED, found FOUND;
/// REMEDY".
struct Refusal {
  int line = 0;
  int column = 0;
  std::string path;
  std::string expected;
  std::string found;
  std::string remedy;

  /// Returns "LINE:COLUMN PATH".
  std::string place() const { return std::to_string(line) + ":" + std::to_string(column) + " " + path; }
};

/// Returns the errors that parse_config() reports for `text`; empty if it accepts the text. Fails the test if
/// a line of the message has another form.
std::vector<Refusal> refusals(std::string_view text, int world_size = 1);

/// Returns the lines of a file in tests/config/data, without empty lines and lines that begin with '#'.
std::vector<std::string> data_lines(const std::string& name);

std::vector<std::string> split(const std::string& line, char separator);

/// Returns a minimal configuration with `settings` (members of the top level, such as `"a": 1`) on its second
/// line.
std::string with(const std::string& settings);

/// Settings with one mistake, which is marked by an '@' before it, and the parts of the message about it.
struct MarkedRefusal {
  std::string settings;
  std::string path;
  std::string expected;
  std::string found;
  std::string remedy;
};

/// Returns the message with which a run refuses `row`. Checks that it is the only one and names the marked
/// place.
Refusal refusal_of(const MarkedRefusal& row);

/// CHECKs that a run refuses each row with exactly the row's texts, and that check_config() refuses it too.
void check_refused_exactly(const std::vector<MarkedRefusal>& rows);

/// Returns the messages of a run about its configuration: warnings, then notes.
std::vector<std::string> told(const Config& config);

/// CHECKs that a run with `settings` reports this one note or warning, and nothing else.
void check_note(const std::string& settings, const std::string& text);
void check_warning(const std::string& settings, const std::string& text);

}  // namespace zerorun::test
