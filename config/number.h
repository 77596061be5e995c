// Reads JSON number literals as integers, without rounding through floating point. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace zerorun::config {

enum class IntegerOutcome { exact, fractional, out_of_range };

struct IntegerReading {
  IntegerOutcome outcome;
  int64_t value = 0;  // only if `outcome` is exact
};

/// `literal` must be a valid JSON number. 5e8 and 2.0 are integers; 1.5 is fractional.
IntegerReading read_integer(std::string_view literal);

/// Whether a valid JSON number is written as zero, like 0, -0.0 or 0e5. 1e-999 is not, although it becomes 0
/// as a double.
bool is_written_zero(std::string_view literal);

/// Whether `text` is a JSON number that a double can hold.
bool is_number(std::string_view text);

}  // namespace zerorun::config
