// Numbers and bytes as text for people. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

/// printf into a string, of at most 511 characters.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// 1234567 as "1,234,567".
std::string with_commas(int64_t number);

/// `text` with everything but printable ASCII, newline and tab as \xNN, so that it cannot garble a terminal.
std::string printable(const std::string& text);

}  // namespace zerorun
