#include "device/gradient_copy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/narrow_floats.h"
#include "device/dtypes.h"

namespace zerorun {
namespace {

using Block = std::array<float, kConversionBlock>;

// Magnitudes are compared as bits: infinity is larger than every finite value and NaN larger than infinity.
// So one maximum over many values shows whether all are finite. This needs no branch for each value, and no
// std::isfinite(), which a compiler may assume to be always true (-ffinite-math-only).
[[gnu::always_inline]] inline int32_t magnitude_of(float value) {
  return std::bit_cast<int32_t>(value) & 0x7fffffff;
}

// The smallest magnitude that `dtype` rounds to infinity.
int32_t overflow_of(Dtype dtype) {
  return magnitude_of(dtype == Dtype::fp32 ? HUGE_VALF : dtype == Dtype::bf16 ? 0x1.ffp127F : 65520.0F);
}

// Each of the loops below returns the largest magnitude of the values that it copies or adds. `from` and `to`
// are the same memory or do not overlap.

// Hardware prefetching stops at the end of a page. Prefetching kAhead elements ahead, across the end of the
// page, saves a quarter of the time when neither array is cached.
constexpr int64_t kAhead = 512;
constexpr int64_t kLine = 64 / sizeof(float);

[[gnu::always_inline]] inline int32_t scale_all(const float* from, float* to, float factor, int64_t numel) {
  constexpr int64_t kChunk = 4 * kLine;
  int32_t largest = 0;
  auto scale = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      const float value = from[i] * factor;
      largest = std::max(largest, magnitude_of(value));
      to[i] = value;
    }
  };
  int64_t begin = 0;
  for (; begin + kChunk <= numel; begin += kChunk) {
    for (int64_t line = begin; line < begin + kChunk; line += kLine) {
      __builtin_prefetch(from + line + kAhead);
      __builtin_prefetch(to + line + kAhead, /*for writing*/ 1);
    }
    scale(begin, begin + kChunk);
  }
  scale(begin, numel);
  return largest;
}

[[gnu::always_inline]] inline int32_t add_all(const float* from, float* to, float factor, int64_t numel) {
  int32_t largest = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const float value = from[i] * factor;
    largest = std::max(largest, magnitude_of(value));
    to[i] += value;
  }
  return largest;
}

[[gnu::always_inline]] inline int32_t copy_all(const uint16_t* from, uint16_t* to, int64_t numel) {
  int16_t largest = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const uint16_t value = from[i];
    largest = std::max(largest, static_cast<int16_t>(value & 0x7fff));
    to[i] = value;
  }
  return largest;
}

using Loop = int32_t (*)(const float* from, float* to, float factor, int64_t numel);

struct Loops {
  Loop scale;
  Loop add;
  int32_t (*copy)(const uint16_t* from, uint16_t* to, int64_t numel);
};

int32_t scale_portable(const float* from, float* to, float factor, int64_t numel) {
  return scale_all(from, to, factor, numel);
}

ZERORUN_AVX2 int32_t scale_avx2(const float* from, float* to, float factor, int64_t numel) {
  return scale_all(from, to, factor, numel);
}

int32_t add_portable(const float* from, float* to, float factor, int64_t numel) {
  return add_all(from, to, factor, numel);
}

ZERORUN_AVX2 int32_t add_avx2(const float* from, float* to, float factor, int64_t numel) {
  return add_all(from, to, factor, numel);
}

int32_t copy_portable(const uint16_t* from, uint16_t* to, int64_t numel) {
  return copy_all(from, to, numel);
}

ZERORUN_AVX2 int32_t copy_avx2(const uint16_t* from, uint16_t* to, int64_t numel) {
  return copy_all(from, to, numel);
}

Loops loops_of(Simd simd) {
  if (simd >= Simd::avx2) return {scale_avx2, add_avx2, copy_avx2};
  return {scale_portable, add_portable, copy_portable};
}

// Reads a tensor's memory block by block as float32.
class Source {
 public:
  explicit Source(const at::Tensor& tensor)
      : memory_(static_cast<const char*>(tensor.const_data_ptr())), dtype_(dtype_of(tensor)) {}

  Dtype dtype() const { return dtype_; }
  const void* at(int64_t index) const { return memory_ + index * size_of(dtype_); }

  /// Pointer to the values from `begin` on as float32: in place, or widened into `block`.
  const float* read(int64_t begin, int64_t length, Block& block, Simd simd) const {
    if (dtype_ == Dtype::fp32) return static_cast<const float*>(at(begin));
    widen(at(begin), dtype_, block.data(), length, simd);
    return block.data();
  }

 private:
  const char* memory_;
  Dtype dtype_;
};

void check_pair(const at::Tensor& to, const at::Tensor& from) {
  ZR_CHECK(to.numel() == from.numel() && to.is_contiguous() && from.is_contiguous(),
           std::to_string(from.numel()) + " values to " + std::to_string(to.numel()));
}

// Runs `loop` on each block of `from` and the same block of `to`. `adds`: whether the loop also reads `to`.
// Returns the largest magnitude that the loop has returned.
int32_t run(Loop loop, bool adds, Simd simd, const at::Tensor& to, const at::Tensor& from, float factor) {
  const int64_t numel = to.numel();
  const Source source(from);
  const Dtype dtype = dtype_of(to);
  const bool is_narrow = dtype != Dtype::fp32;
  char* memory = static_cast<char*>(to.mutable_data_ptr());
  int32_t largest = 0;
  Block read;
  Block written;
  for (int64_t begin = 0; begin < numel; begin += kConversionBlock) {
    const int64_t length = std::min(kConversionBlock, numel - begin);
    char* target = memory + begin * size_of(dtype);
    float* result = is_narrow ? written.data() : reinterpret_cast<float*>(target);
    if (is_narrow && adds) widen(target, dtype, result, length, simd);
    largest = std::max(largest, loop(source.read(begin, length, read, simd), result, factor, length));
    if (is_narrow) narrow(result, target, dtype, length, simd);
  }
  return largest;
}

}  // namespace

bool copy_scaled_on(Simd simd, const at::Tensor& to, const at::Tensor& from, float factor) {
  check_pair(to, from);
  const Loops loops = loops_of(simd);
  const Dtype dtype = dtype_of(to);
  if (factor == 1 && dtype != Dtype::fp32 && dtype == dtype_of(from)) {
    const int32_t infinity = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
    return loops.copy(static_cast<const uint16_t*>(from.const_data_ptr()),
                      static_cast<uint16_t*>(to.mutable_data_ptr()), to.numel()) < infinity;
  }
  return run(loops.scale, false, simd, to, from, factor) < overflow_of(dtype);
}

bool add_scaled_on(Simd simd, const at::Tensor& to, const at::Tensor& from, float factor) {
  check_pair(to, from);
  return run(loops_of(simd).add, true, simd, to, from, factor) < overflow_of(Dtype::fp32);
}

bool copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  return copy_scaled_on(widest_simd(), to, from, factor);
}

bool add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  return add_scaled_on(widest_simd(), to, from, factor);
}

int64_t first_not_finite(const at::Tensor& values) {
  const int64_t numel = values.numel();
  const Source source(values);
  const int32_t infinity = overflow_of(Dtype::fp32);
  Block read;
  for (int64_t begin = 0; begin < numel; begin += kConversionBlock) {
    const int64_t length = std::min(kConversionBlock, numel - begin);
    const float* block = source.read(begin, length, read, widest_simd());
    for (int64_t i = 0; i < length; ++i) {
      if (magnitude_of(block[i]) >= infinity) return begin + i;
    }
  }
  return -1;
}

}  // namespace zerorun
