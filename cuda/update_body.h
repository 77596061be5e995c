// The work of one kernel thread in an optimizer step (cuda/kernel_bodies.h). Values and moments are float32
// or bfloat16.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "cuda/kernel_bodies.h"
#include "cuda/values.h"
#include "device/rounding.h"
#include "device/update_kernels.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

/// Loads N elements of `dtype`, float32 or bfloat16.
template <int N>
ZERORUN_HOST_DEVICE Group<float, N> load_wide(const void* memory, Dtype dtype, int64_t index) {
  if (dtype == Dtype::fp32) return load<N>(static_cast<const float*>(memory) + index);
  const Group<Bf16, N> narrow_values = load<N>(static_cast<const Bf16*>(memory) + index);
  Group<float, N> values;
  ZERORUN_UNROLL
  for (int i = 0; i < N; ++i) values.values[i] = widen(narrow_values.values[i]);
  return values;
}

/// Stores N elements as `dtype`, float32 or bfloat16. `which` of the element's states this is: its random
/// numbers.
template <int N>
ZERORUN_HOST_DEVICE void store_wide(void* memory, Dtype dtype, int64_t index, const Group<float, N>& values,
                                    RandomRounding rounding, int which) {
  if (dtype == Dtype::fp32) return store<N>(static_cast<float*>(memory) + index, values);
  Group<Bf16, N> rounded;
  ZERORUN_UNROLL
  for (int i = 0; i < N; ++i) {
    rounded.values[i] =
        rounding.is_on
            ? Bf16{bf16_at_random(values.values[i], bits_of_element(rounding, index + i) >> (16 * which))}
            : narrow<Bf16>(values.values[i]);
  }
  store<N>(static_cast<Bf16*>(memory) + index, rounded);
}

/// One optimizer step of `rule` on gradients multiplied by StepFacts::factor. Also writes the new values,
/// rounded, to `rounded`. kWide: values and moments are float32; otherwise each may be bfloat16.
template <typename Rule, typename Gradient, bool kWide>
struct Update {
  static constexpr int kWidth = kWidthOf<float, Gradient>;
  static constexpr int kAhead = 1;  // one group already has up to five loads in flight
  Rule rule;
  UpdateSpan span;   // first to third: null if the rule does not have this moment
  float factor = 0;  // StepFacts::factor

  template <int N>
  struct Taken {
    Group<Gradient, N> gradient;
    Group<float, N> values;
    Group<float, N> first;
    Group<float, N> second;
    Group<float, N> third;
  };

  Division division(int64_t numel) const {
    const int64_t moment = size_of(span.moments_dtype);
    return divide(numel, kWidth,
                  {{span.gradient, sizeof(Gradient)},
                   {span.values, size_of(span.values_dtype)},
                   {span.first, moment},
                   {span.second, moment},
                   {span.third, moment},
                   {span.rounded, sizeof(uint16_t)}});
  }

  template <int N>
  ZERORUN_HOST_DEVICE Taken<N> take(int64_t index) const {
    const Dtype moments = moments_dtype();
    Taken<N> taken;
    taken.gradient = load<N>(static_cast<const Gradient*>(span.gradient) + index);
    taken.values = load_wide<N>(span.values, values_dtype(), index);
    if constexpr (Rule::kMoments > 0) taken.first = load_wide<N>(span.first, moments, index);
    if constexpr (Rule::kMoments > 1) taken.second = load_wide<N>(span.second, moments, index);
    if constexpr (Rule::kMoments > 2) taken.third = load_wide<N>(span.third, moments, index);
    return taken;
  }

  template <int N>
  ZERORUN_HOST_DEVICE void give(int64_t index, Taken<N> taken) const {
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      Element element{taken.values.values[i], 0, 0, 0};
      if constexpr (Rule::kMoments > 0) element.first = taken.first.values[i];
      if constexpr (Rule::kMoments > 1) element.second = taken.second.values[i];
      if constexpr (Rule::kMoments > 2) element.third = taken.third.values[i];
      rule.apply(widen(taken.gradient.values[i]) * factor, element);
      taken.values.values[i] = element.value;
      if constexpr (Rule::kMoments > 0) taken.first.values[i] = element.first;
      if constexpr (Rule::kMoments > 1) taken.second.values[i] = element.second;
      if constexpr (Rule::kMoments > 2) taken.third.values[i] = element.third;
    }
    const Dtype moments = moments_dtype();
    store_wide<N>(span.values, values_dtype(), index, taken.values, rounding(), 0);
    if constexpr (Rule::kMoments > 0) store_wide<N>(span.first, moments, index, taken.first, rounding(), 1);
    if constexpr (Rule::kMoments > 1) store_wide<N>(span.second, moments, index, taken.second, rounding(), 2);
    if constexpr (Rule::kMoments > 2) store_wide<N>(span.third, moments, index, taken.third, rounding(), 3);
    if (span.rounded == nullptr) return;
    if (span.rounded_dtype == Dtype::bf16) round_to<Bf16>(index, taken.values);
    if (span.rounded_dtype == Dtype::fp16) round_to<Fp16>(index, taken.values);
  }

 private:
  ZERORUN_HOST_DEVICE RandomRounding rounding() const { return kWide ? RandomRounding() : span.rounding; }
  // Constants if kWide, so that the compiler drops what bfloat16 state needs.
  ZERORUN_HOST_DEVICE Dtype values_dtype() const { return kWide ? Dtype::fp32 : span.values_dtype; }
  ZERORUN_HOST_DEVICE Dtype moments_dtype() const { return kWide ? Dtype::fp32 : span.moments_dtype; }

  template <typename To, int N>
  ZERORUN_HOST_DEVICE void round_to(int64_t index, const Group<float, N>& results) const {
    Group<To, N> result;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) result.values[i] = narrow<To>(results.values[i]);
    store<N>(static_cast<To*>(span.rounded) + index, result);
  }
};

}  // namespace zerorun::cuda
