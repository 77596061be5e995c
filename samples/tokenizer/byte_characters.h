// The characters by which GPT-2's files write bytes: printable ones stand for themselves, the others for
// U+0100 and what follows (bytes_to_unicode() of GPT-2's encoder.py). Pure functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zerorun {

/// The code point of each byte.
const std::array<char32_t, 256>& byte_characters();

/// "\n a" as "ĊĠa".
std::string to_characters(std::string_view bytes);
/// The reverse; nothing if `characters` has one that stands for no byte.
std::optional<std::string> to_bytes(std::string_view characters);

}  // namespace zerorun
