// The hash with which the fixtures in data/ describe tensors: FNV-1a (64 bits).
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>

#include "base/fnv1a.h"

namespace zerorun::testing {

inline std::string hash_of_fixture(std::span<const std::byte> bytes) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016lx", static_cast<unsigned long>(fnv1a(bytes)));
  return text;
}

}  // namespace zerorun::testing
