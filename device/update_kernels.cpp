#include "device/update_kernels.h"

#include <algorithm>
#include <variant>

#include "base/narrow_loops.h"

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

template <typename Rule>
[[gnu::always_inline]] inline void prefetch_chunk(const UpdateSpan& span, int64_t begin) {
  if (span.gradient_dtype == Dtype::fp32) {
    prefetch(static_cast<const float*>(span.gradient) + begin);
  } else {
    prefetch(static_cast<const uint16_t*>(span.gradient) + begin);
  }
  prefetch(span.values + begin);
  if constexpr (Rule::kMoments > 0) prefetch(span.first + begin);
  if constexpr (Rule::kMoments > 1) prefetch(span.second + begin);
  if constexpr (Rule::kMoments > 2) prefetch(span.third + begin);
}

// Updates elements [begin, begin + numel); `gradient` is their gradient in float32.
template <typename Rule>
[[gnu::always_inline]] inline void update_elements(const Rule& rule, float factor, const UpdateSpan& span,
                                                   const float* __restrict gradient, int64_t begin,
                                                   int64_t numel) {
  float* __restrict values = span.values + begin;
  float* __restrict first = Rule::kMoments > 0 ? span.first + begin : nullptr;
  float* __restrict second = Rule::kMoments > 1 ? span.second + begin : nullptr;
  float* __restrict third = Rule::kMoments > 2 ? span.third + begin : nullptr;
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
template <Simd simd, typename Rule>
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
  update_elements(rule, factor, span, gradient, begin, numel);
  if (span.rounded == nullptr) return;
  uint16_t* rounded = static_cast<uint16_t*>(span.rounded) + begin;
  if (streams) {
    alignas(kLine) uint16_t narrowed[kChunk];
    narrow_in_loop<simd>(span.values + begin, narrowed, span.rounded_dtype, numel);
    stream(narrowed, rounded);
  } else {
    narrow_in_loop<simd>(span.values + begin, rounded, span.rounded_dtype, numel);
  }
}

// Updates the first `head` elements, then whole chunks, then the rest.
template <Simd simd, typename Rule>
[[gnu::always_inline]] inline void update_all(const Rule& given, float factor, const UpdateSpan& span,
                                              int64_t head, bool streams) {
  const Rule rule = given;  // a local copy, which no store can alias
  update_chunk<simd>(rule, factor, span, 0, head, false);
  int64_t begin = head;
  for (; begin + kChunk <= span.numel; begin += kChunk) {
    if (begin + kAhead + kChunk <= span.numel) prefetch_chunk<Rule>(span, begin + kAhead);
    update_chunk<simd>(rule, factor, span, begin, kChunk, streams);
  }
  update_chunk<simd>(rule, factor, span, begin, span.numel - begin, false);
}

// One copy of the loop for each instruction set.

template <typename Rule>
void update_portable(const Rule& rule, float factor, const UpdateSpan& span, int64_t head, bool streams) {
  update_all<Simd::portable>(rule, factor, span, head, streams);
}

template <typename Rule>
ZERORUN_AVX2 void update_avx2(const Rule& rule, float factor, const UpdateSpan& span, int64_t head,
                              bool streams) {
  update_all<Simd::avx2>(rule, factor, span, head, streams);
}

template <typename Rule>
ZERORUN_AVX512 void update_avx512(const Rule& rule, float factor, const UpdateSpan& span, int64_t head,
                                  bool streams) {
  update_all<Simd::avx512>(rule, factor, span, head, streams);
}

// Number of elements from `memory` to the next cache line boundary.
template <typename T>
int64_t before_line(const T* memory) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(memory) % kLine / sizeof(T));
}

template <typename Rule>
void update_span(const Rule& rule, float factor, const UpdateSpan& span, Simd simd) {
  const int64_t head = std::min(before_line(span.values), span.numel);
  bool streams = false;
#if defined(__x86_64__)
  streams = span.rounded && span.numel >= kStreamed &&
            before_line(static_cast<uint16_t*>(span.rounded) + head) == 0;
#endif
  constexpr decltype(&update_portable<Rule>) kOf[] = {update_portable<Rule>, update_avx2<Rule>,
                                                      update_avx512<Rule>};
  kOf[static_cast<int>(simd)](rule, factor, span, head, streams);
#if defined(__x86_64__)
  if (streams) _mm_sfence();  // makes the non-temporal stores visible to other threads
#endif
}

}  // namespace

UpdateSpan UpdateSpan::slice(int64_t begin, int64_t length) const {
  UpdateSpan part = *this;
  part.numel = length;
  part.gradient = static_cast<const char*>(gradient) + begin * size_of(gradient_dtype);
  part.values = values + begin;
  if (first) part.first = first + begin;
  if (second) part.second = second + begin;
  if (third) part.third = third + begin;
  if (rounded) part.rounded = static_cast<char*>(rounded) + begin * size_of(rounded_dtype);
  return part;
}

void update(const UpdateRule& rule, float factor, const UpdateSpan& span, Simd simd) {
  std::visit([&](const auto& formula) { update_span(formula, factor, span, simd); }, rule);
}

}  // namespace zerorun
