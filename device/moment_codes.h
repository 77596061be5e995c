// Optimizer states in 8 bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"): a code
// for each element and a float32 scale for each block of 256 elements of a parameter. An element is the value
// of its code times its block's scale. For host and device: all kernels give the same bits if they are
// compiled without fused multiply-add. No LibTorch; any thread.
//
// [Note: codes] The values of codes are those of bitsandbytes' dynamic map: seven decades, each twice as
// finely divided as the one below it, 0 and 1. A state with signs has no -1. So its scale has the sign of the
// element with the largest magnitude, which is then exact, and elements that are decoded and encoded again
// keep their codes. Memory of zeros is a block of zeros. Unlike bitsandbytes', a positive element of a state
// without signs never becomes 0: Adam divides by its root, and the gradient's average may be left.
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "device/host_device.h"

namespace zerorun {

/// Elements that share a scale. Blocks begin at the first element of each parameter.
inline constexpr int64_t kCodedBlock = 256;

constexpr int64_t coded_blocks(int64_t numel) {
  return (numel + kCodedBlock - 1) / kCodedBlock;
}

/// Where the values of codes lie, for encode().
struct CodeLimits {
  static constexpr int kDecades = 7;
  int zero;   // index of the value 0 in CodeBook::values
  int parts;  // of the lowest decade; each decade has twice as many as the one below it
  /// The lower ends of the decades: the middles between neighbours.
  float begins[kDecades];
  float end;  // of the last decade, between its last value and 1
  /// An element of decade d goes to its part number `element * factors[d] - offsets[d]`.
  float factors[kDecades];
  float offsets[kDecades];
};

struct CodeBook {
  /// In ascending order. The code of values[i] is i - zero, as a byte.
  float values[256];
  CodeLimits limits;
};

namespace moment_codes {

/// Calls put() with the middles of `parts` equal parts of 0.1 to 1, times `factor`, to the bit as PyTorch
/// computes them in float32 with fused multiply-add.
template <typename Put>
constexpr void each_middle(int parts, float factor, const Put& put) {
  constexpr float kFirst = 0.1F;
  const double step = (1.0F - kFirst) / static_cast<float>(parts);
  const auto boundary = [&](int index) {
    return static_cast<float>(index < (parts + 1) / 2 ? kFirst + step * index : 1 - step * (parts - index));
  };
  for (int part = 0; part < parts; ++part) put((boundary(part) + boundary(part + 1)) / 2 * factor);
}

constexpr CodeBook make_book(bool has_signs) {
  constexpr double kTens[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  CodeBook book = {};
  CodeLimits& limits = book.limits;
  limits.zero = has_signs ? 127 : 0;
  limits.parts = has_signs ? 1 : 2;
  int next = limits.zero + 1;
  for (int decade = 0; decade < CodeLimits::kDecades; ++decade) {
    const int parts = limits.parts << decade;
    const int first = next;
    each_middle(parts, static_cast<float>(kTens[decade]), [&](float value) {
      if (has_signs) book.values[2 * limits.zero - next] = -value;
      book.values[next++] = value;
    });
    limits.begins[decade] = (book.values[first - 1] + book.values[first]) / 2;
    limits.factors[decade] = static_cast<float>(parts / (0.9 * kTens[decade]));
    limits.offsets[decade] = static_cast<float>(parts / 9.0);
  }
  book.values[255] = 1;
  limits.end = (book.values[254] + book.values[255]) / 2;
  return book;
}

}  // namespace moment_codes

/// Of states with signs (averages of gradients), and of states without (averages of squares).
inline constexpr CodeBook kSignedBook = moment_codes::make_book(true);
inline constexpr CodeBook kUnsignedBook = moment_codes::make_book(false);

/// The larger key belongs to the larger magnitude; of +x and -x, to +x. NaN has the largest.
ZERORUN_HOST_DEVICE uint32_t magnitude_key(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return (bits << 1) | (bits >> 31 ^ 1U);
}

/// The scale of a block with this largest key: NaN if an element is infinite or NaN.
ZERORUN_HOST_DEVICE float scale_of_key(uint32_t key) {
  const uint32_t magnitude = key >> 1;
  const uint32_t bits = magnitude >= 0x7f800000U ? 0x7fc00000U : magnitude | (key & 1U ? 0 : 0x80000000U);
  return __builtin_bit_cast(float, bits);
}

namespace moment_codes {

struct Decade {
  float factor, offset;  // of CodeLimits
  int32_t first, last;   // codes of its lowest and of its highest value
};

template <int decade>
ZERORUN_HOST_DEVICE void enter(const CodeLimits& limits, float magnitude, Decade& found) {
  const bool is_above = magnitude > limits.begins[decade];
  const int32_t before = limits.parts * ((1 << decade) - 1);
  found.factor = is_above ? limits.factors[decade] : found.factor;
  found.offset = is_above ? limits.offsets[decade] : found.offset;
  found.first = is_above ? before + 1 : found.first;
  found.last = is_above ? before + (limits.parts << decade) : found.last;
}

}  // namespace moment_codes

/// Whether a block with this scale has codes: without, they are 0, and all elements are 0 or NaN.
ZERORUN_HOST_DEVICE bool has_codes(float scale) {
  return scale != 0 && scale == scale;
}

/// The code of an element of a block that has codes: of the value nearest to element / scale, but for
/// rounding in the middle between two values. Without branches, so that compilers vectorize loops of it.
ZERORUN_HOST_DEVICE uint8_t encode(const CodeLimits& limits, float element, float scale) {
  const float share = element / scale;
  const float magnitude = share < 0 ? -share : share;
  moment_codes::Decade decade = {};
  moment_codes::enter<0>(limits, magnitude, decade);
  moment_codes::enter<1>(limits, magnitude, decade);
  moment_codes::enter<2>(limits, magnitude, decade);
  moment_codes::enter<3>(limits, magnitude, decade);
  moment_codes::enter<4>(limits, magnitude, decade);
  moment_codes::enter<5>(limits, magnitude, decade);
  moment_codes::enter<6>(limits, magnitude, decade);
  const int32_t nearest = decade.first + static_cast<int32_t>(magnitude * decade.factor - decade.offset);
  int32_t code = nearest < decade.last ? nearest : decade.last;
  code = share > limits.end ? 255 - limits.zero : code;
  const bool has_signs = limits.zero != 0;
  code = !has_signs && code == 0 && share > 0 ? 1 : code;
  const int32_t negative = has_signs ? -code : 0;  // without signs only a program's mistake is negative
  return static_cast<uint8_t>(share < 0 ? negative : code);
}

ZERORUN_HOST_DEVICE float decode(const CodeBook& book, uint8_t code, float scale) {
  return book.values[static_cast<uint8_t>(code + book.limits.zero)] * scale;
}

/// Encodes `numel` elements from the start of a block, and writes the scales of their blocks. `has_signs`:
/// whether the state is one of kSignedBook or one of kUnsignedBook.
void encode(const float* values, int64_t numel, bool has_signs, uint8_t* codes, float* scales,
            Simd simd = widest_simd());
/// The reverse.
void decode(const uint8_t* codes, const float* scales, int64_t numel, bool has_signs, float* values);

}  // namespace zerorun
