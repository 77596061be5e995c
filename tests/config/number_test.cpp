#include "config/number.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

using namespace zerorun;
using namespace zerorun::config;

TEST_CASE("integers are read from any form of number exactly") {
  struct Row {
    const char* literal;
    int64_t value;
  };
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  constexpr int64_t smallest = std::numeric_limits<int64_t>::min();
  const Row rows[] = {{"0", 0},
                      {"-0", 0},
                      {"-0.0e7", 0},
                      {"0e999999999999999999999", 0},
                      {"7", 7},
                      {"-7", -7},
                      {"2.0", 2},
                      {"5e8", 500'000'000},
                      {"5E+8", 500'000'000},
                      {"1.25e2", 125},
                      {"1500e-2", 15},
                      {"0.00005e5", 5},
                      {"9007199254740993.0", 9007199254740993},  // 2^53 + 1: no double holds it
                      {"9223372036854775807", largest},
                      {"9.223372036854775807e18", largest},
                      {"-9223372036854775808", smallest}};
  for (const Row& row : rows) {
    INFO(row.literal);
    const IntegerReading reading = read_integer(row.literal);
    CHECK(reading.outcome == IntegerOutcome::exact);
    CHECK(reading.value == row.value);
  }
}

TEST_CASE("fractions and integers beyond 64 bits are distinguished") {
  for (const char* literal : {"1.5", "-0.1", "5000.5", "1e-1", "1500e-3", "1e-999999999999999999999"}) {
    INFO(literal);
    CHECK(read_integer(literal).outcome == IntegerOutcome::fractional);
  }
  for (const char* literal :
       {"9223372036854775808", "-9223372036854775809", "1e19", "1e999999999999999999999",
        "18446744073709551616", "99999999999999999999999999"}) {
    INFO(literal);
    CHECK(read_integer(literal).outcome == IntegerOutcome::out_of_range);
  }
}

TEST_CASE("JSON numbers are recognized") {
  for (const char* text : {"0", "-0.5", "10", "-1", "1.5", "5e8", "5E+8", "1.0e-3"}) CHECK(is_number(text));
  for (const char* text : {"", "-", "+1", ".5", "1.", "0x2", "1e", "1e+", "1 ", "01", "-01", "NaN", "one"})
    CHECK(!is_number(text));
  CHECK(is_written_zero("-0.000e5"));
  CHECK(!is_written_zero("1e-999"));
}
