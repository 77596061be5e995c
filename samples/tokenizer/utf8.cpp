#include "samples/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace samples {
namespace {

struct Sequence {
  size_t valid = 0;  // bytes at the start that agree with a character's encoding
  bool complete = false;
};

// The character at the start of `text`, by table 3-7 of the Unicode standard.
Sequence first_character(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (length == 0) return {1, false};
  // Bounds of the second byte, which exclude overlong forms, surrogates and values > U+10FFFF.
  uint8_t low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t index = 1; index < length; ++index) {
    if (index == text.size() || byte(index) < low || byte(index) > high) return {index, false};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true};
}

size_t ascii_prefix(std::string_view text) {
  size_t length = 0;
  for (uint64_t word; length + sizeof(word) <= text.size(); length += sizeof(word)) {
    std::memcpy(&word, text.data() + length, sizeof(word));
    if (word & 0x8080808080808080u) break;
  }
  return length;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    length += ascii_prefix(text.substr(length));
    if (length == text.size()) break;
    const Sequence character = first_character(text.substr(length));
    if (!character.complete) break;
    length += character.valid;
  }
  return length;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  while (true) {
    const size_t valid = valid_utf8_prefix(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return result;
    result += "\xef\xbf\xbd";
    text.remove_prefix(first_character(text).valid);
  }
}

}  // namespace samples
