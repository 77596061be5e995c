// Numbers that tell one thing from another: a save, a process, a claim. Any thread.
#pragma once

#include <cstdint>
#include <random>

namespace zerorun {

/// Returns 64 random bits of the system.
inline uint64_t random_bits() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace zerorun
