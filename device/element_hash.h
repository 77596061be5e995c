// Hashes of tensors that do not depend on how the elements are divided: each element gives 64 bits, mixed of
// its index and its bits, and the hash is their sum modulo 2^64. So hashes of slices, chunks and ranks add up
// to that of the whole. Pure functions without LibTorch; any thread.
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "device/host_device.h"

namespace zerorun {

/// What one element adds. `salt` tells apart what is hashed: elements with the same index and bits. The
/// halves are two known finalizers of 32 bits, which vectorize better than one of 64: that of MurmurHash3
/// (Appleby), and lowbias32 (Wellons). Indices count modulo
/// 2^32.
ZERORUN_HOST_DEVICE uint64_t element_hash(uint32_t index, uint32_t bits, uint32_t salt) {
  uint32_t low = (bits ^ salt) ^ (index * 0x9e3779b9U);
  low = (low ^ (low >> 16)) * 0x85ebca6bU;
  low = (low ^ (low >> 13)) * 0xc2b2ae35U;
  low ^= low >> 16;
  uint32_t high = bits + salt + (index + 1) * 0xadb4a92dU;
  high = (high ^ (high >> 16)) * 0x7feb352dU;
  high = (high ^ (high >> 15)) * 0x846ca68bU;
  high ^= high >> 16;
  return (static_cast<uint64_t>(high) << 32) + low;
}

/// The sum over `values`, the first of which has the index `first`. An element has `size` bytes: 1, 2 or 4,
/// extended by zeros, or 8, which count as two elements.
uint64_t hash_of_bits(const void* values, int64_t size, int64_t numel, int64_t first, uint32_t salt,
                      Simd simd = widest_simd());

/// The sum over the bits of values[i] * factor, a float32. All NaN count as one.
uint64_t hash_of_products(const float* values, float factor, int64_t numel, int64_t first,
                          Simd simd = widest_simd());

}  // namespace zerorun
