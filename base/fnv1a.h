#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// The hash FNV-1a of 64 bits (Fowler, Noll and Vo): quick to compute, not safe against forgery.

namespace zerorun {

inline constexpr uint64_t kFnv1aStart = 14695981039346656037U;

// Adds one byte to `hash`, or a word at once, which is not the hash of the word's bytes.
constexpr uint64_t fnv1a(uint64_t hash, uint64_t word) {
  return (hash ^ word) * 1099511628211U;
}

constexpr uint64_t fnv1a(uint64_t hash, std::string_view text) {
  for (const unsigned char byte : text) hash = fnv1a(hash, uint64_t{byte});
  return hash;
}

constexpr uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = kFnv1aStart;
  for (const std::byte byte : bytes) hash = fnv1a(hash, static_cast<uint64_t>(byte));
  return hash;
}

}  // namespace zerorun
