#include "device/update_kernels.h"

#include <algorithm>
#include <variant>

#include "base/narrow_loops.h"
#include "device/moment_codes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zerorun {
namespace {

// Memory limits the speed of a step, and hardware prefetching of several arrays at once comes too late. So
// the loop works in chunks of a few cache lines, and before each chunk it prefetches the chunk kAhead
// elements later. Values are converted chunk by chunk too, so that they stay in the L1 cache.

constexpr int64_t kChunk = 64;
constexpr int64_t kAhead = 256;
constexpr int64_t kLine = 64;  // bytes of a cache line

// Spans of at least this many elements do not fit into the caches, so their rounded values are written with
// non-temporal stores.
constexpr int64_t kStreamed = int64_t{1} << 22;

template <typename T>
[[gnu::always_inline]] inline void prefetch(const T* memory) {
  constexpr int64_t kStep = kLine / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < kChunk; i += kStep) __builtin_prefetch(memory + i);
}

[[gnu::always_inline]] inline void prefetch(const void* memory, Dtype dtype, int64_t begin) {
  if (dtype == Dtype::fp32) {
    prefetch(static_cast<const float*>(memory) + begin);
  } else {
    prefetch(static_cast<const uint16_t*>(memory) + begin);
  }
}

template <typename Rule>
[[gnu::always_inline]] inline void prefetch_chunk(const UpdateSpan& span, int64_t begin) {
  prefetch(span.gradient, span.gradient_dtype, begin);
  prefetch(span.values, span.values_dtype, begin);
  if constexpr (Rule::kMoments > 0) prefetch(span.first, span.moments_dtype, begin);
  if constexpr (Rule::kMoments > 1) prefetch(span.second, span.moments_dtype, begin);
  if constexpr (Rule::kMoments > 2) prefetch(span.third, span.moments_dtype, begin);
}

// A chunk's values and moments in float32: the span's own memory, or copies of bfloat16 state. kWide: all of
// the span's state is float32.
template <Simd simd, typename Rule, bool kWide>
class WideChunk {
 public:
  [[gnu::always_inline]] WideChunk(const UpdateSpan& span, int64_t begin, int64_t numel)
      : span_(span), begin_(begin), numel_(numel) {
    values = widened(span.values, span.values_dtype, 0);
    if constexpr (Rule::kMoments > 0) first = widened(span.first, span.moments_dtype, 1);
    if constexpr (Rule::kMoments > 1) second = widened(span.second, span.moments_dtype, 2);
    if constexpr (Rule::kMoments > 2) third = widened(span.third, span.moments_dtype, 3);
  }

  // Rounds the copies into the span's memory.
  [[gnu::always_inline]] void put_back() const {
    if constexpr (kWide) return;
    put_back(span_.values, span_.values_dtype, 0);
    if constexpr (Rule::kMoments > 0) put_back(span_.first, span_.moments_dtype, 1);
    if constexpr (Rule::kMoments > 1) put_back(span_.second, span_.moments_dtype, 2);
    if constexpr (Rule::kMoments > 2) put_back(span_.third, span_.moments_dtype, 3);
  }

  float* values = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  float* third = nullptr;

 private:
  static constexpr int kCopies = kWide ? 1 : 1 + Rule::kMoments;

  [[gnu::always_inline]] float* widened(void* state, Dtype dtype, int which) {
    if (kWide || dtype == Dtype::fp32) return static_cast<float*>(state) + begin_;
    widen_in_loop<simd>(static_cast<const uint16_t*>(state) + begin_, dtype, copies_[which], numel_);
    return copies_[which];
  }

  [[gnu::always_inline]] void put_back(void* state, Dtype dtype, int which) const {
    if (dtype == Dtype::fp32) return;
    uint16_t* to = static_cast<uint16_t*>(state) + begin_;
    if (!span_.rounding.is_on) return narrow_in_loop<simd>(copies_[which], to, dtype, numel_);
    for (int64_t i = 0; i < numel_; ++i)
      to[i] = bf16_at_random(copies_[which][i], bits_of_element(span_.rounding, begin_ + i) >> (16 * which));
  }

  const UpdateSpan& span_;
  int64_t begin_;
  int64_t numel_;
  alignas(kLine) float copies_[kCopies][kWide ? 1 : kChunk];
};

// Updates `numel` elements of `chunk`; `gradient` is their gradient in float32.
template <typename Rule, typename Chunk>
[[gnu::always_inline]] inline void update_elements(const Rule& rule, float factor, const Chunk& chunk,
                                                   const float* __restrict gradient, int64_t numel) {
  float* __restrict values = chunk.values;
  float* __restrict first = chunk.first;
  float* __restrict second = chunk.second;
  float* __restrict third = chunk.third;
  for (int64_t i = 0; i < numel; ++i) {
    Element element{.value = values[i], .first = 0, .second = 0, .third = 0};
    if constexpr (Rule::kMoments > 0) element.first = first[i];
    if constexpr (Rule::kMoments > 1) element.second = second[i];
    if constexpr (Rule::kMoments > 2) element.third = third[i];
    rule.apply(gradient[i] * factor, element);
    values[i] = element.value;
    if constexpr (Rule::kMoments > 0) first[i] = element.first;
    if constexpr (Rule::kMoments > 1) second[i] = element.second;
    if constexpr (Rule::kMoments > 2) third[i] = element.third;
  }
}

// Writes kChunk values with non-temporal stores, which do not load the cache lines first.
[[gnu::always_inline]] inline void stream([[maybe_unused]] const uint16_t* from,
                                          [[maybe_unused]] uint16_t* to) {
#if defined(__x86_64__)
  for (int64_t i = 0; i < kChunk; i += 8) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
#endif
}

// Updates at most kChunk elements. Always inlined, so that a constant `numel` reaches every loop.
template <Simd simd, bool kWide, typename Rule>
[[gnu::always_inline]] inline void update_chunk(const Rule& rule, float factor, const UpdateSpan& span,
                                                int64_t begin, int64_t numel, bool streams) {
  alignas(kLine) float widened[kChunk];
  const float* gradient = widened;
  if (span.gradient_dtype == Dtype::fp32) {
    gradient = static_cast<const float*>(span.gradient) + begin;
  } else {
    widen_in_loop<simd>(static_cast<const uint16_t*>(span.gradient) + begin, span.gradient_dtype, widened,
                        numel);
  }
  WideChunk<simd, Rule, kWide> chunk(span, begin, numel);
  update_elements(rule, factor, chunk, gradient, numel);
  chunk.put_back();
  if (span.rounded == nullptr) return;
  uint16_t* rounded = static_cast<uint16_t*>(span.rounded) + begin;
  if (streams) {
    alignas(kLine) uint16_t narrowed[kChunk];
    narrow_in_loop<simd>(chunk.values, narrowed, span.rounded_dtype, numel);
    stream(narrowed, rounded);
  } else {
    narrow_in_loop<simd>(chunk.values, rounded, span.rounded_dtype, numel);
  }
}

// Updates the first `head` elements, then whole chunks, then the rest.
template <Simd simd, bool kWide, typename Rule>
[[gnu::always_inline]] inline void update_all(const Rule& given, float factor, const UpdateSpan& span,
                                              int64_t head, bool streams) {
  const Rule rule = given;  // a local copy, which no store can alias
  update_chunk<simd, kWide>(rule, factor, span, 0, head, false);
  int64_t begin = head;
  for (; begin + kChunk <= span.numel; begin += kChunk) {
    if (begin + kAhead + kChunk <= span.numel) prefetch_chunk<Rule>(span, begin + kAhead);
    update_chunk<simd, kWide>(rule, factor, span, begin, kChunk, streams);
  }
  update_chunk<simd, kWide>(rule, factor, span, begin, span.numel - begin, false);
}

// One copy of the loop for each instruction set.

template <bool kWide, typename Rule>
void update_portable(const Rule& rule, float factor, const UpdateSpan& span, int64_t head, bool streams) {
  update_all<Simd::portable, kWide>(rule, factor, span, head, streams);
}

template <bool kWide, typename Rule>
ZERORUN_AVX2 void update_avx2(const Rule& rule, float factor, const UpdateSpan& span, int64_t head,
                              bool streams) {
  update_all<Simd::avx2, kWide>(rule, factor, span, head, streams);
}

template <bool kWide, typename Rule>
ZERORUN_AVX512 void update_avx512(const Rule& rule, float factor, const UpdateSpan& span, int64_t head,
                                  bool streams) {
  update_all<Simd::avx512, kWide>(rule, factor, span, head, streams);
}

// Number of elements of `dtype` from `memory` to the next cache line boundary.
int64_t before_line(const void* memory, Dtype dtype) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(memory) % kLine) / size_of(dtype);
}

template <bool kWide, typename Rule>
void update_span(const Rule& rule, float factor, const UpdateSpan& span, Simd simd) {
  const int64_t head = std::min(before_line(span.values, span.values_dtype), span.numel);
  bool streams = false;
#if defined(__x86_64__)
  streams = span.rounded && span.numel >= kStreamed &&
            before_line(static_cast<uint16_t*>(span.rounded) + head, span.rounded_dtype) == 0;
#endif
  constexpr decltype(&update_portable<kWide, Rule>) kOf[] = {
      update_portable<kWide, Rule>, update_avx2<kWide, Rule>, update_avx512<kWide, Rule>};
  kOf[static_cast<int>(simd)](rule, factor, span, head, streams);
#if defined(__x86_64__)
  if (streams) _mm_sfence();  // makes the non-temporal stores visible to other threads
#endif
}

void* advanced(void* memory, int64_t bytes) {
  return memory ? static_cast<char*>(memory) + bytes : nullptr;
}

float* advanced_scales(float* scales, int64_t elements) {
  return scales ? scales + elements / kCodedBlock : nullptr;
}

// The moments of one block at a time are decoded, updated in float32, and encoded.
void update_codes(const UpdateRule& rule, float factor, const UpdateSpan& span, Simd simd) {
  alignas(kLine) float first[kCodedBlock];
  alignas(kLine) float second[kCodedBlock];
  for (int64_t begin = 0; begin < span.numel; begin += kCodedBlock) {
    const UpdateSpan codes = span.slice(begin, std::min(kCodedBlock, span.numel - begin));
    auto* first_codes = static_cast<uint8_t*>(codes.first);
    auto* second_codes = static_cast<uint8_t*>(codes.second);
    UpdateSpan part = codes;
    part.first_scales = part.second_scales = nullptr;
    part.first = first;
    decode(first_codes, codes.first_scales, part.numel, /*has_signs=*/true, first);
    if (second_codes) {
      part.second = second;
      decode(second_codes, codes.second_scales, part.numel, /*has_signs=*/false, second);
    }
    update(rule, factor, part, simd);
    encode(first, part.numel, /*has_signs=*/true, first_codes, codes.first_scales, simd);
    if (second_codes)
      encode(second, part.numel, /*has_signs=*/false, second_codes, codes.second_scales, simd);
  }
}

}  // namespace

UpdateSpan UpdateSpan::slice(int64_t begin, int64_t length) const {
  UpdateSpan part = *this;
  part.numel = length;
  part.gradient = static_cast<const char*>(gradient) + begin * size_of(gradient_dtype);
  const int64_t moment = has_codes() ? 1 : size_of(moments_dtype);
  part.values = advanced(values, begin * size_of(values_dtype));
  part.first = advanced(first, begin * moment);
  part.second = advanced(second, begin * moment);
  part.third = advanced(third, begin * moment);
  part.first_scales = advanced_scales(first_scales, begin);
  part.second_scales = advanced_scales(second_scales, begin);
  part.rounded = advanced(rounded, begin * size_of(rounded_dtype));
  part.rounding.first += begin;
  return part;
}

void update(const UpdateRule& rule, float factor, const UpdateSpan& span, Simd simd) {
  if (span.has_codes()) return update_codes(rule, factor, span, simd);
  std::visit(
      [&](const auto& formula) {
        if (span.is_all_float32()) return update_span<true>(formula, factor, span, simd);
        update_span<false>(formula, factor, span, simd);
      },
      rule);
}

}  // namespace zerorun
