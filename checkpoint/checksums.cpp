#include "checkpoint/checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace zerorun::checkpoint {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

uint64_t checksum_of(std::span<const std::byte> block) {
  return XXH3_64bits(block.data(), block.size());
}

std::string to_hexadecimal(uint64_t checksum) {
  std::array<char, kDigits> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + kDigits, checksum, 16).ptr;
  const auto count = static_cast<size_t>(end - digits.data());
  return std::string(kDigits - count, '0') + std::string(digits.data(), count);
}

uint64_t from_hexadecimal(const std::string& text) {
  uint64_t checksum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (text.size() != kDigits || error != std::errc() || end != text.data() + text.size()) {
    throw UserError("checksum \"" + text + "\": expected 16 hexadecimal digits");
  }
  return checksum;
}

}  // namespace zerorun::checkpoint
