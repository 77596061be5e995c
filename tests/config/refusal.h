// Shared by the tests of config/: a refused configuration as data, and the lines of a data file. For tests
// only.
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

  /// "LINE:COLUMN PATH"
  std::string place() const { return std::to_string(line) + ":" + std::to_string(column) + " " + path; }
};

/// The mistakes that parse_config finds in `text`; empty if it accepts it. Fails the test if a line has
/// another form.
std::vector<Refusal> refusals(std::string_view text, int world_size = 1);

/// The lines of a file in tests/config/data, without empty ones and those that begin with '#'.
std::vector<std::string> data_lines(const std::string& name);

std::vector<std::string> split(const std::string& line, char separator);

/// A minimal configuration with `settings` (members of the top level, such as `"a": 1`) added on a second
/// line.
std::string with(const std::string& settings);

/// `settings` with one mistake, marked by an '@' before it, and the message that refuses them.
struct MarkedRefusal {
  std::string settings;
  std::string path;
  std::string expected;
  std::string found;
  std::string remedy;
};

/// The one message with which a run refuses `row`; CHECKs its place.
Refusal refusal_of(const MarkedRefusal& row);

/// CHECKs that a run refuses each row with exactly its texts, and that check_config() refuses it too.
void check_refused_exactly(const std::vector<MarkedRefusal>& rows);

/// The run's messages on its configuration: warnings, then notes.
std::vector<std::string> told(const Config& config);

/// CHECKs that a run with `settings` reports this one note or warning, and nothing else.
void check_note(const std::string& settings, const std::string& text);
void check_warning(const std::string& settings, const std::string& text);

}  // namespace zerorun::test
