#include "samples/common/text.h"

#include <cstdarg>
#include <cstdio>

namespace samples {

std::string format(const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(buffer, sizeof(buffer), pattern, arguments);
  va_end(arguments);
  return buffer;
}

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool group_starts = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (group_starts) text += ',';
    text += digits[i];
  }
  return text;
}

std::string printable(const std::string& text) {
  std::string safe;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if ((byte >= 0x20 && byte < 0x7f) || byte == '\n' || byte == '\t') {
      safe += character;
    } else {
      safe += format("\\x%02x", byte);
    }
  }
  return safe;
}

}  // namespace samples
