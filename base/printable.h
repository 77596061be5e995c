// Text of strangers (names in files, arguments) made harmless for a terminal. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace zerorun {

/// `text` with a ? for each control character that is not in `kept`, and for each byte that is not UTF-8.
std::string printable(std::string_view text, std::string_view kept = "");

}  // namespace zerorun
