// Checks and repairs UTF-8 that may be invalid. Pure functions, safe from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace samples {

/// The length of the longest prefix of `text` that is valid UTF-8 (RFC 3629).
size_t valid_utf8_prefix(std::string_view text);

/// Returns `text` with U+FFFD in place of invalid bytes, as Python's bytes.decode("utf-8", "replace") does.
/// The bytes of one incomplete character are replaced by one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace samples
