#include "base/permutation.h"

#include <bit>
#include <string>

#include "base/error.h"

namespace zerorun {
namespace {

// The finalizer of SplitMix64: every input bit changes about half of the output bits.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

// A Feistel network permutes [0, 4^k). Applying it again until the value is below `size` gives a permutation
// of [0, size) (cycle walking). 4^k < 4 size, so this takes fewer than four applications on average.
int64_t permute(int64_t index, int64_t size, uint64_t key) {
  ZR_CHECK(0 <= index && index < size, "index " + std::to_string(index) + " of " + std::to_string(size));
  constexpr int kRounds = 6;
  const int half_bits = (std::bit_width(static_cast<uint64_t>(size - 1)) + 1) / 2;
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & half_mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix(mix(key + round) ^ right) & half_mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

int64_t shuffled_sample(int64_t number, int64_t size, uint64_t seed) {
  ZR_CHECK(number >= 0 && size > 0, "sample " + std::to_string(number) + " of " + std::to_string(size));
  const auto epoch = static_cast<uint64_t>(number / size);
  return permute(number % size, size, mix(mix(seed) + epoch));
}

}  // namespace zerorun
