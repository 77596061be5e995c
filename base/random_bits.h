// Random numbers that serve as identifiers, for example of a save, a process or a claim. Any thread.
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
