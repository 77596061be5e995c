#include "launcher/hosts/option_checks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/timeline_steps.h"

namespace zerorun::launcher {

std::optional<int> whole_number_in(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  const bool whole =
      error == std::errc() && last == end && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
  return whole ? std::optional(value) : std::nullopt;
}

std::string describe_mistake(const CLI::ParseError& error) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return text;
  for (const auto& [theirs, ours] :
       {std::pair<std::string_view, std::string_view>("At Most ", "expected at most "),
        {"At least ", "expected at least "},
        {" required but received ", ", found "}}) {
    if (const size_t at = text.find(theirs); at != std::string::npos) text.replace(at, theirs.size(), ours);
  }
  return text;
}

namespace checks {

CLI::Validator seconds(double low, bool low_allowed, double high) {
  auto check = [=](std::string& text) -> std::string {
    double value = NAN;
    const bool number = CLI::detail::lexical_cast(text, value);
    if (number && (value > low || (low_allowed && value == low)) && value <= high) return {};
    return "expected a number of seconds, " + std::string(low_allowed ? "0" : "more than 0") + " to " +
           std::to_string(static_cast<int>(high)) + "; found '" + text + "'";
  };
  return CLI::Validator(check, "");
}

CLI::Validator timeline_steps() {
  auto check = [](std::string& text) -> std::string {
    if (parse_timeline_steps(text)) return {};
    return "expected the first and the last step, from 1, such as 10:20; found '" + text + "'";
  };
  return CLI::Validator(check, "");
}

CLI::Validator whole_number(int low, int high) {
  auto check = [=](std::string& text) -> std::string {
    const std::optional<int> value = whole_number_in(text);
    if (value && *value >= low && *value <= high) return {};
    return "expected a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
           "; found '" + text + "'";
  };
  return CLI::Validator(check, "");
}

CLI::Validator one_of(const std::vector<std::string>& values) {
  auto check = [=](std::string& text) -> std::string {
    if (std::ranges::count(values, text) > 0) return {};
    std::string expected = values.front();
    for (size_t i = 1; i < values.size(); ++i)
      expected += (i + 1 < values.size() ? ", " : " or ") + values[i];
    return "expected " + expected + "; found '" + text + "'";
  };
  return CLI::Validator(check, "");
}

CLI::Validator count_of_ranks(const std::vector<std::string>& words) {
  auto check = [=](std::string& text) -> std::string {
    if (std::ranges::count(words, text) > 0) return {};
    const std::string number = whole_number(1, kMostRanks)(text);
    if (number.empty() || words.empty()) return number;
    return "expected a whole number from 1 to " + std::to_string(kMostRanks) + ", gpu, cpu or auto; found '" +
           text + "'";
  };
  return CLI::Validator(check, "");
}

CLI::Validator count_of_hosts() {
  auto check = [](std::string& text) -> std::string {
    const size_t colon = text.find(':');
    if (colon == std::string::npos) return count_of_ranks({})(text);
    if (text.substr(0, colon) != text.substr(colon + 1))
      return "a job starts on a fixed number of hosts: expected one number; found '" + text +
             "' (--min_nodes lets a restart leave hosts out)";
    text = text.substr(0, colon);
    return whole_number(1, kMostRanks)(text);
  };
  return CLI::Validator(check, "");
}

}  // namespace checks
}  // namespace zerorun::launcher
