#include "device/element_hash.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr int64_t kBlock = 4096;  // loops of so few elements count in 32 bits, which vectorizes better

// Adds element_hash() of elements whose bits are bits_of(i).
template <typename BitsOf>
[[gnu::always_inline]] inline uint64_t sum_of(int64_t numel, int64_t first, uint32_t salt,
                                              const BitsOf& bits_of) {
  uint64_t sum = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const auto length = static_cast<uint32_t>(std::min(kBlock, numel - begin));
    const auto place = static_cast<uint32_t>(first + begin);
    for (uint32_t i = 0; i < length; ++i) sum += element_hash(place + i, bits_of(begin + i), salt);
  }
  return sum;
}

template <typename Bits>
[[gnu::always_inline]] inline uint64_t sum_of_bits(const Bits* values, int64_t numel, int64_t first,
                                                   uint32_t salt) {
  return sum_of(
      numel, first, salt, [=](int64_t i) __attribute__((always_inline)) { return uint32_t{values[i]}; });
}

[[gnu::always_inline]] inline uint64_t sum_of_products(const float* values, float factor, int64_t numel,
                                                       int64_t first) {
  return sum_of(
      numel, first, 0, [=](int64_t i) __attribute__((always_inline)) {
        const float product = values[i] * factor;
        return product != product ? 0x7fc00000U : std::bit_cast<uint32_t>(product);
      });
}

[[gnu::always_inline]] inline uint64_t sum_by_size(const void* values, int64_t size, int64_t numel,
                                                   int64_t first, uint32_t salt) {
  switch (size) {
    case 1:
      return sum_of_bits(static_cast<const uint8_t*>(values), numel, first, salt);
    case 2:
      return sum_of_bits(static_cast<const uint16_t*>(values), numel, first, salt);
    case 4:
      return sum_of_bits(static_cast<const uint32_t*>(values), numel, first, salt);
    default:
      return sum_of_bits(static_cast<const uint32_t*>(values), 2 * numel, 2 * first, salt);
  }
}

ZERORUN_AVX2 uint64_t bits_avx2(const void* values, int64_t size, int64_t numel, int64_t first,
                                uint32_t salt) {
  return sum_by_size(values, size, numel, first, salt);
}
ZERORUN_AVX512 uint64_t bits_avx512(const void* values, int64_t size, int64_t numel, int64_t first,
                                    uint32_t salt) {
  return sum_by_size(values, size, numel, first, salt);
}
ZERORUN_AVX2 uint64_t products_avx2(const float* values, float factor, int64_t numel, int64_t first) {
  return sum_of_products(values, factor, numel, first);
}
ZERORUN_AVX512 uint64_t products_avx512(const float* values, float factor, int64_t numel, int64_t first) {
  return sum_of_products(values, factor, numel, first);
}

}  // namespace

uint64_t hash_of_bits(const void* values, int64_t size, int64_t numel, int64_t first, uint32_t salt,
                      Simd simd) {
  ZR_CHECK(size == 1 || size == 2 || size == 4 || size == 8, "elements of another size");
  if (simd == Simd::avx512) return bits_avx512(values, size, numel, first, salt);
  if (simd == Simd::avx2) return bits_avx2(values, size, numel, first, salt);
  return sum_by_size(values, size, numel, first, salt);
}

uint64_t hash_of_products(const float* values, float factor, int64_t numel, int64_t first, Simd simd) {
  if (simd == Simd::avx512) return products_avx512(values, factor, numel, first);
  if (simd == Simd::avx2) return products_avx2(values, factor, numel, first);
  return sum_of_products(values, factor, numel, first);
}

}  // namespace zerorun
