// Hexadecimal digits of bytes and numbers. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zerorun {

/// Two digits for each byte: "00ff".
std::string in_hexadecimal(std::string_view bytes);
/// 16 digits.
std::string in_hexadecimal(uint64_t number);

}  // namespace zerorun
