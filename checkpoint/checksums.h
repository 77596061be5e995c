// Checksums of a file: one 64-bit XXH3 hash (https://xxhash.com) per MiB. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zerorun::checkpoint {

inline constexpr int64_t kChecksumBlock = int64_t{1} << 20;

/// The checksum of `bytes`: of a file, a block of at most kChecksumBlock bytes.
uint64_t checksum_of(std::span<const std::byte> bytes);

/// The number whose in_hexadecimal() (base/hexadecimal.h) is `text`. Throws UserError for any other text.
uint64_t from_hexadecimal(const std::string& text);

}  // namespace zerorun::checkpoint
