// Checksums of a file, one for each MiB of it: XXH3 with 64 bits (https://xxhash.com). Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zerorun {

inline constexpr int64_t kChecksumBlock = int64_t{1} << 20;

/// The checksum of at most one block.
uint64_t checksum_of(std::span<const std::byte> block);

/// A checksum as 16 hexadecimal digits, and back. Throws UserError for any other text.
std::string to_hexadecimal(uint64_t checksum);
uint64_t from_hexadecimal(const std::string& text);

}  // namespace zerorun
