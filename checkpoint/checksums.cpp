#include "checkpoint/checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

#include "base/error.h"

namespace zerorun::checkpoint {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
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
