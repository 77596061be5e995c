#include "optim/update_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

// The loops over elements, one for each rule. `gradient` may be a widened copy; nothing else is shared.

[[gnu::always_inline]] inline void update_elements(const AdamUpdate& rule, const UpdateSpan& span,
                                                   const float* __restrict gradient) {
  float* __restrict values = span.values;
  float* __restrict first = span.first;
  float* __restrict second = span.second;
  const AdamUpdate r = rule;
  for (int64_t i = 0; i < span.numel; ++i) {
    const float value = values[i];
    const float g = gradient[i] * r.gradient_factor + r.gradient_decay * value;
    const float m = r.beta1 * first[i] + r.new_in_first * g;
    const float v = r.beta2 * second[i] + r.new_in_second * (g * g);
    first[i] = m;
    second[i] = v;
    // Decay and step are subtracted together: the value is rounded once.
    values[i] = value - (r.value_decay * value + r.step_size * m / (std::sqrt(v) * r.root_factor + r.eps));
  }
}

[[gnu::always_inline]] inline void update_elements(const SgdUpdate& rule, const UpdateSpan& span,
                                                   const float* __restrict gradient) {
  float* __restrict values = span.values;
  float* __restrict first = span.first;
  const SgdUpdate r = rule;
  if (!first) {
    for (int64_t i = 0; i < span.numel; ++i) {
      const float g = gradient[i] * r.gradient_factor + r.gradient_decay * values[i];
      values[i] -= r.lr * g;
    }
    return;
  }
  // Where the momentum buffer is all, the gradient is not added again.
  const float of_gradient = r.nesterov ? 1 : 0;
  const float of_first = r.nesterov ? r.momentum : 1;
  for (int64_t i = 0; i < span.numel; ++i) {
    const float value = values[i];
    const float g = gradient[i] * r.gradient_factor + r.gradient_decay * value;
    const float m = r.momentum * first[i] + r.new_in_first * g;
    first[i] = m;
    values[i] = value - r.lr * (of_gradient * g + of_first * m);
  }
}

// One copy of each loop for each instruction set.

template <typename Rule>
void update_block_portable(const Rule& rule, const UpdateSpan& span, const float* gradient) {
  update_elements(rule, span, gradient);
}

template <typename Rule>
ZERORUN_AVX2 void update_block_avx2(const Rule& rule, const UpdateSpan& span, const float* gradient) {
  update_elements(rule, span, gradient);
}

template <typename Rule>
void update_span(const Rule& rule, const UpdateSpan& span, Simd simd) {
  const auto update_block = simd == Simd::avx2 ? update_block_avx2<Rule> : update_block_portable<Rule>;
  std::array<float, kConversionBlock> widened;
  for (int64_t begin = 0; begin < span.numel; begin += kConversionBlock) {
    const UpdateSpan block = span.slice(begin, std::min(kConversionBlock, span.numel - begin));
    const float* gradient = static_cast<const float*>(block.gradient);
    if (block.gradient_dtype != Dtype::fp32) {
      widen(block.gradient, block.gradient_dtype, widened.data(), block.numel, simd);
      gradient = widened.data();
    }
    update_block(rule, block, gradient);
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
  if (rounded) part.rounded = static_cast<char*>(rounded) + begin * size_of(rounded_dtype);
  return part;
}

void update(const AdamUpdate& rule, const UpdateSpan& span, Simd simd) {
  update_span(rule, span, simd);
}

void update(const SgdUpdate& rule, const UpdateSpan& span, Simd simd) {
  update_span(rule, span, simd);
}

}  // namespace zerorun
