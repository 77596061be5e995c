#include "samples/tokenizer/byte_characters.h"

#include <unordered_map>

namespace samples {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::string to_utf8(char32_t character) {  // below U+0800
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))};
}

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> result{};
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte)
      result[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    return result;
  }();
  return characters;
}

std::string to_characters(std::string_view bytes) {
  std::string characters;
  for (const char byte : bytes) characters += to_utf8(byte_characters()[static_cast<uint8_t>(byte)]);
  return characters;
}

std::optional<std::string> to_bytes(std::string_view characters) {
  static const auto bytes = [] {
    std::unordered_map<std::string, char> result;
    for (int byte = 0; byte < 256; ++byte)
      result.emplace(to_utf8(byte_characters()[byte]), static_cast<char>(byte));
    return result;
  }();
  std::string result;
  for (size_t begin = 0; begin < characters.size();) {
    const size_t length = static_cast<uint8_t>(characters[begin]) < 0x80 ? 1 : 2;
    const auto found = bytes.find(std::string(characters.substr(begin, length)));
    if (found == bytes.end()) return std::nullopt;
    result += found->second;
    begin += length;
  }
  return result;
}

}  // namespace samples
