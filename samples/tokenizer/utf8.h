// UTF-8 that may be invalid. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zerorun {

/// The length of the longest prefix of `text` that is valid UTF-8 (RFC 3629).
size_t valid_utf8_prefix(std::string_view text);

/// `text` with U+FFFD in place of what is invalid, as Python's bytes.decode("utf-8", "replace") does it: one
/// for each longest start of a character that is cut off.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace zerorun
