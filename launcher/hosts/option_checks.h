// Checks of the values of `zerorun`'s options, for CLI11. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class ParseError;
class Validator;
}  // namespace CLI

namespace zerorun::launcher {

/// The most ranks on a host, and the most hosts.
inline constexpr int kMostRanks = 4096;
/// The longest time that an option takes, in seconds.
inline constexpr double kLongestTimeout = 1e6;

/// The whole number that `text` is, in decimal digits only; absent if it is none, or above the largest int.
std::optional<int> whole_number_in(const std::string& text);

/// The error in this project's words: what was expected and what was found.
std::string describe_mistake(const CLI::ParseError& error);

namespace checks {

/// Accepts a number above `low` (or equal to `low`, if `low_allowed`), and at most `high`.
CLI::Validator seconds(double low, bool low_allowed, double high);
CLI::Validator whole_number(int low, int high);
CLI::Validator one_of(const std::vector<std::string>& values);
/// Like whole_number(1, kMostRanks). `words` are accepted too.
CLI::Validator count_of_ranks(const std::vector<std::string>& words);
/// torchrun's --nnodes is N or MIN:MAX. A range of one number becomes that number.
CLI::Validator count_of_hosts();
/// The first and the last step, as 10:20.
CLI::Validator timeline_steps();

}  // namespace checks
}  // namespace zerorun::launcher
