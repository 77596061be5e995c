// Checks of texts that go into JSON. Functions without state; any thread.
#pragma once

#include <cstddef>
#include <string>

namespace zerorun::checkpoint {

/// JSON deeper than this is refused, because writing or destroying it could overflow the stack.
constexpr int kDeepestJson = 1000;
/// Longer texts are refused: a manifest that holds one could be too long to be read (kMostTextBytes).
constexpr size_t kLongestJson = size_t{1} << 29;

/// Whether JSON can hold the text: it is valid UTF-8.
bool is_json_text(const std::string& text);

/// Throws UserError unless `text` is JSON that comes back as it is: no object has a key twice, integers fit
/// into 64 bits, and it has at most kDeepestJson levels and kLongestJson bytes. `what` names `text` in the
/// message.
void check_json(const std::string& text, const std::string& what);

/// `text` for a message: each byte that is not part of valid UTF-8 is replaced.
std::string printable_text(const std::string& text);

}  // namespace zerorun::checkpoint
