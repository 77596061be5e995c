// The hash with which the fixtures in data/ describe tensors: FNV-1a (64 bits).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace zerorun::testing {

inline std::string fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = 14695981039346656037ULL;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211ULL;
  char text[17];
  std::snprintf(text, sizeof(text), "%016lx", static_cast<unsigned long>(hash));
  return text;
}

}  // namespace zerorun::testing
