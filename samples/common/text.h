// Formats numbers and bytes as text for people. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace samples {

/// printf into a string, which is cut off after 511 characters.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// Formats 1234567 as "1,234,567".
std::string with_commas(int64_t number);

/// Returns `text` with every byte other than printable ASCII, newline and tab written as \xNN, so that it
/// cannot garble a terminal.
std::string printable(const std::string& text);

}  // namespace samples
