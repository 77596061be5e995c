#include "device/moment_codes.h"

#include <algorithm>
#include <cstring>

namespace zerorun {
namespace {

template <bool kHasSigns>
[[gnu::always_inline]] inline void encode_block(const float* values, int64_t numel, uint8_t* codes,
                                                float* scale) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < numel; ++i) largest = std::max(largest, magnitude_key(values[i]));
  const float divisor = scale_of_key(largest);
  *scale = divisor;
  if (!has_codes(divisor)) {
    std::memset(codes, 0, static_cast<size_t>(numel));
    return;
  }
  constexpr CodeLimits kLimits = (kHasSigns ? kSignedBook : kUnsignedBook).limits;
  for (int64_t i = 0; i < numel; ++i) codes[i] = encode(kLimits, values[i], divisor);
}

// One copy of the loop for each instruction set.

template <bool kHasSigns>
void encode_portable(const float* values, int64_t numel, uint8_t* codes, float* scale) {
  encode_block<kHasSigns>(values, numel, codes, scale);
}
template <bool kHasSigns>
ZERORUN_AVX2 void encode_avx2(const float* values, int64_t numel, uint8_t* codes, float* scale) {
  encode_block<kHasSigns>(values, numel, codes, scale);
}
template <bool kHasSigns>
ZERORUN_AVX512 void encode_avx512(const float* values, int64_t numel, uint8_t* codes, float* scale) {
  encode_block<kHasSigns>(values, numel, codes, scale);
}

template <bool kHasSigns>
void encode_blocks(const float* values, int64_t numel, uint8_t* codes, float* scales, Simd simd) {
  constexpr decltype(&encode_portable<kHasSigns>) kOf[] = {encode_portable<kHasSigns>, encode_avx2<kHasSigns>,
                                                           encode_avx512<kHasSigns>};
  for (int64_t begin = 0; begin < numel; begin += kCodedBlock) {
    kOf[static_cast<int>(simd)](values + begin, std::min(kCodedBlock, numel - begin), codes + begin,
                                scales + begin / kCodedBlock);
  }
}

}  // namespace

void encode(const float* values, int64_t numel, bool has_signs, uint8_t* codes, float* scales, Simd simd) {
  (has_signs ? encode_blocks<true> : encode_blocks<false>)(values, numel, codes, scales, simd);
}

void decode(const uint8_t* codes, const float* scales, int64_t numel, bool has_signs, float* values) {
  const CodeBook& book = has_signs ? kSignedBook : kUnsignedBook;
  for (int64_t i = 0; i < numel; ++i) values[i] = decode(book, codes[i], scales[i / kCodedBlock]);
}

}  // namespace zerorun
