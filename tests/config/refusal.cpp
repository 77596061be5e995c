#include "tests/config/refusal.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "config/check.h"

namespace zerorun::test {
using namespace config;

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, separator);) fields.push_back(field);
  return fields;
}

namespace {

/// Removes the start of `text` up to and including `mark`, and returns the part before `mark`. `last`: uses
/// the last occurrence of `mark`.
std::string take(std::string& text, const std::string& mark, bool last = false) {
  const std::size_t at = last ? text.rfind(mark) : text.find(mark);
  REQUIRE(at != std::string::npos);
  const std::string taken = text.substr(0, at);
  text.erase(0, at + mark.size());
  return taken;
}

int number(const std::string& text) {
  REQUIRE(!text.empty());
  REQUIRE(text.find_first_not_of("0123456789") == std::string::npos);
  return std::stoi(text);
}

Refusal take_apart(std::string line) {
  INFO(line);
  Refusal refusal;
  REQUIRE(take(line, ":") == "conf");
  refusal.line = number(take(line, ":"));
  refusal.column = number(take(line, ": "));
  REQUIRE(take(line, ": ") == "error");
  refusal.path = take(line, ": expected ");
  refusal.expected = take(line, ", found ");
  refusal.found = take(line, "; ", true);
  refusal.remedy = line;
  REQUIRE(refusal.line >= 1);
  REQUIRE(refusal.column >= 1);
  for (const std::string* part : {&refusal.path, &refusal.expected, &refusal.found, &refusal.remedy}) {
    REQUIRE(!part->empty());
  }
  return refusal;
}

}  // namespace

std::vector<Refusal> refusals(std::string_view text, int world_size) {
  std::vector<Refusal> result;
  try {
    parse_config(text, "conf", world_size);
  } catch (const UserError& error) {
    for (const std::string& line : split(error.what(), '\n')) {
      if (line.front() != ' ') result.push_back(take_apart(line));  // indented lines quote the file
    }
    REQUIRE(!result.empty());
  }
  return result;
}

std::vector<std::string> data_lines(const std::string& name) {
  const std::string path = std::string(ZERORUN_SOURCE_DIR) + "/tests/config/data/" + name;
  std::ifstream stream(path);
  INFO(path);
  REQUIRE(stream);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

std::string with(const std::string& settings) {
  return "{\"train_micro_batch_size_per_gpu\": 2,\n" + settings + "}";
}

static std::string without_mark(const MarkedRefusal& row) {
  std::string settings = row.settings;
  return settings.erase(settings.find('@'), 1);
}

Refusal refusal_of(const MarkedRefusal& row) {
  const std::size_t mark = row.settings.find('@');
  REQUIRE(mark != std::string::npos);
  const auto found = refusals(with(without_mark(row)));
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "2:" + std::to_string(mark + 1) + " " + row.path);
  return found[0];
}

void check_refused_exactly(const std::vector<MarkedRefusal>& rows) {
  for (const MarkedRefusal& row : rows) {
    INFO(row.settings);
    const Refusal found = refusal_of(row);
    CHECK(found.expected == row.expected);
    CHECK(found.found == row.found);
    CHECK(found.remedy == row.remedy);
    CHECK(check_config(with(without_mark(row)), "conf").refused());
  }
}

std::vector<std::string> told(const Config& config) {
  std::vector<std::string> lines = config.warnings;
  lines.insert(lines.end(), config.notes.begin(), config.notes.end());
  return lines;
}

static void check_told(const std::string& settings, const std::string& text) {
  INFO(settings);
  const std::vector<std::string> lines = told(parse_config(with(settings), "conf", 1));
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::StartsWith("conf:2:") && Catch::EndsWith(": " + text));
}

void check_note(const std::string& settings, const std::string& text) {
  check_told(settings, "note: " + text);
}

void check_warning(const std::string& settings, const std::string& text) {
  check_told(settings, "warning: " + text);
}

}  // namespace zerorun::test
