#include "config/number.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

namespace zerorun::config {
namespace {

constexpr int64_t huge_exponent = 1'000'000'000;  // larger than the number of digits of any literal
constexpr std::size_t int64_digits = 19;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The number `digits` x 10^exponent, negated if `negative`. Empty `digits` mean zero.
struct Decimal {
  bool negative = false;
  std::string digits;  // without leading or trailing zeros
  int64_t exponent = 0;
};

int64_t read_exponent(std::string_view text) {
  if (text.front() == '+') text.remove_prefix(1);
  int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) value = huge_exponent;
  const bool negative = text.front() == '-';
  return negative ? std::max(-std::abs(value), -huge_exponent) : std::min(value, huge_exponent);
}

Decimal decimal_of(std::string_view literal) {
  Decimal decimal;
  const auto mark = literal.find_first_of("eE");
  if (mark != std::string_view::npos) {
    decimal.exponent = read_exponent(literal.substr(mark + 1));
    literal = literal.substr(0, mark);
  }
  bool after_point = false;
  for (const char c : literal) {
    if (c == '-') decimal.negative = true;
    if (c == '.') after_point = true;
    if (!is_digit(c)) continue;
    if (after_point) --decimal.exponent;
    if (c != '0' || !decimal.digits.empty()) decimal.digits += c;
  }
  while (!decimal.digits.empty() && decimal.digits.back() == '0') {
    decimal.digits.pop_back();
    ++decimal.exponent;
  }
  return decimal;
}

}  // namespace

IntegerReading read_integer(std::string_view literal) {
  const Decimal decimal = decimal_of(literal);
  if (decimal.digits.empty()) return {IntegerOutcome::exact, 0};
  if (decimal.exponent < 0) return {IntegerOutcome::fractional};
  if (decimal.digits.size() + static_cast<std::size_t>(decimal.exponent) > int64_digits) {
    return {IntegerOutcome::out_of_range};
  }
  std::string text = decimal.negative ? "-" : "";
  text += decimal.digits;
  text.append(static_cast<std::size_t>(decimal.exponent), '0');
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return {IntegerOutcome::out_of_range};
  return {IntegerOutcome::exact, value};
}

bool is_written_zero(std::string_view literal) {
  return decimal_of(literal).digits.empty();
}

bool is_number(std::string_view text) {
  // nlohmann/json would also accept white space around the number.
  const bool bare = !text.empty() && (text.front() == '-' || is_digit(text.front())) && is_digit(text.back());
  return bare && nlohmann::json::accept(text);
}

}  // namespace zerorun::config
