// The characters that stand for bytes in GPT-2's files, as bytes_to_unicode() of GPT-2's encoder.py defines
// them: a printable byte is written as itself, the other bytes as U+0100, U+0101 and so on. Pure functions,
// safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace samples {

/// The code point that stands for each byte.
const std::array<char32_t, 256>& byte_characters();

/// Writes bytes as characters: "\n a" becomes U+010A, U+0120, "a".
std::string to_characters(std::string_view bytes);
/// The inverse of to_characters(). Returns nothing if a character stands for no byte.
std::optional<std::string> to_bytes(std::string_view characters);

}  // namespace samples
