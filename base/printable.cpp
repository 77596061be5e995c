#include "base/printable.h"

#include <cstddef>

namespace zerorun {
namespace {

// The length of the UTF-8 character at the start of `text`; 0 if there is none, or if it is overlong, a
// surrogate, beyond Unicode, or a control character of two bytes.
size_t character_at(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = length > 1 ? byte(1) : 0x80;
  const bool wrong = (first == 0xC2 && second < 0xA0) || (first == 0xE0 && second < 0xA0) ||
                     (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
                     (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const bool control = (first < 0x20 || first == 0x7F) && kept.find(text.front()) == std::string_view::npos;
    const size_t length = control ? 0 : character_at(text);
    if (length == 0) {
      result += '?';
      text.remove_prefix(1);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

}  // namespace zerorun
