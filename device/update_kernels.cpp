#include "device/update_kernels.h"

#include <algorithm>
#include <array>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

// `gradient` may be a widened copy of the span's; nothing else is shared.
template <typename Rule>
[[gnu::always_inline]] inline void update_elements(const Rule& given, float factor, const UpdateSpan& span,
                                                   const float* __restrict gradient) {
  float* __restrict values = span.values;
  float* __restrict first = span.first;
  float* __restrict second = span.second;
  float* __restrict third = span.third;
  const Rule rule = given;
  for (int64_t i = 0; i < span.numel; ++i) {
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

// One copy of the loop for each instruction set.

template <typename Rule>
void update_block_portable(const Rule& rule, float factor, const UpdateSpan& span, const float* gradient) {
  update_elements(rule, factor, span, gradient);
}

template <typename Rule>
ZERORUN_AVX2 void update_block_avx2(const Rule& rule, float factor, const UpdateSpan& span,
                                    const float* gradient) {
  update_elements(rule, factor, span, gradient);
}

template <typename Rule>
void update_span(const Rule& rule, float factor, const UpdateSpan& span, Simd simd) {
  const auto update_block = simd == Simd::avx2 ? update_block_avx2<Rule> : update_block_portable<Rule>;
  std::array<float, kConversionBlock> widened;
  for (int64_t begin = 0; begin < span.numel; begin += kConversionBlock) {
    const UpdateSpan block = span.slice(begin, std::min(kConversionBlock, span.numel - begin));
    const float* gradient = static_cast<const float*>(block.gradient);
    if (block.gradient_dtype != Dtype::fp32) {
      widen(block.gradient, block.gradient_dtype, widened.data(), block.numel, simd);
      gradient = widened.data();
    }
    update_block(rule, factor, block, gradient);
    if (block.rounded) narrow(block.values, block.rounded, block.rounded_dtype, block.numel, simd);
  }
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

void update(const AdamUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const SgdUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const MomentumUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const LionUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const AmsgradUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const AdagradUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const RmspropUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const CenteredRmspropUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const RmspropMomentumUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const CenteredRmspropMomentumUpdate& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

void update(const LambDirection& rule, float factor, const UpdateSpan& span, Simd simd) {
  update_span(rule, factor, span, simd);
}

}  // namespace zerorun
