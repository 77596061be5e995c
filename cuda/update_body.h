// The work of one kernel thread in an optimizer step (cuda/kernel_bodies.h). Values and moments are float32
// or bfloat16.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "cuda/kernel_bodies.h"
#include "cuda/values.h"
#include "device/moment_codes.h"
#include "device/rounding.h"
#include "device/update_kernels.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

// The arrays of values and moments, number 0 and numbers 1 to 3; null beyond the rule's moments. load() and
// store() work on N elements of one of them.

/// All arrays are float32.
struct WideState {
  float* arrays[4];

  explicit WideState(const UpdateSpan& span)
      : arrays{static_cast<float*>(span.values), static_cast<float*>(span.first),
               static_cast<float*>(span.second), static_cast<float*>(span.third)} {}

  Array array(int number) const { return {arrays[number], sizeof(float)}; }
  template <int number, int N>
  ZERORUN_HOST_DEVICE Group<float, N> load_from(int64_t index) const {
    return load<N>(arrays[number] + index);
  }
  template <int number, int N>
  ZERORUN_HOST_DEVICE void store_to(int64_t index, const Group<float, N>& values) const {
    store<N>(arrays[number] + index, values);
  }
};

/// Values, moments or both are bfloat16. They are rounded as UpdateSpan::rounding says.
struct NarrowState {
  void* arrays[4];
  Dtype values_dtype;
  Dtype moments_dtype;
  RandomRounding rounding;

  explicit NarrowState(const UpdateSpan& span)
      : arrays{span.values, span.first, span.second, span.third},
        values_dtype(span.values_dtype),
        moments_dtype(span.moments_dtype),
        rounding(span.rounding) {}

  Array array(int number) const {
    return {arrays[number], size_of(number == 0 ? values_dtype : moments_dtype)};
  }
  template <int number, int N>
  ZERORUN_HOST_DEVICE Group<float, N> load_from(int64_t index) const {
    if (is_float32<number>()) return load<N>(static_cast<const float*>(arrays[number]) + index);
    const Group<Bf16, N> narrow_values = load<N>(static_cast<const Bf16*>(arrays[number]) + index);
    Group<float, N> values;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) values.values[i] = widen(narrow_values.values[i]);
    return values;
  }
  template <int number, int N>
  ZERORUN_HOST_DEVICE void store_to(int64_t index, const Group<float, N>& values) const {
    if (is_float32<number>()) return store<N>(static_cast<float*>(arrays[number]) + index, values);
    Group<Bf16, N> rounded;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = values.values[i];
      rounded.values[i] =
          rounding.is_on ? Bf16{bf16_at_random(value, bits_of_element(rounding, index + i) >> (16 * number))}
                         : narrow<Bf16>(value);
    }
    store<N>(static_cast<Bf16*>(arrays[number]) + index, rounded);
  }

 private:
  template <int number>
  ZERORUN_HOST_DEVICE bool is_float32() const {
    return (number == 0 ? values_dtype : moments_dtype) == Dtype::fp32;
  }
};

/// One optimizer step of `rule` on gradients multiplied by StepFacts::factor. Also writes the new values,
/// rounded, to `rounded`. State: WideState or NarrowState.
template <typename Rule, typename Gradient, typename State>
struct Update {
  static constexpr int kWidth = kWidthOf<float, Gradient>;
  static constexpr int kAhead = 1;  // one group already has up to five loads in flight
  Rule rule;
  const Gradient* gradient;
  State state;
  void* rounded;  // null: rounded values are not written
  Dtype rounded_dtype;
  float factor = 0;  // StepFacts::factor

  Update(const Rule& formula, const UpdateSpan& span)
      : rule(formula),
        gradient(static_cast<const Gradient*>(span.gradient)),
        state(span),
        rounded(span.rounded),
        rounded_dtype(span.rounded_dtype) {}

  template <int N>
  struct Taken {
    Group<Gradient, N> gradient;
    Group<float, N> values;
    Group<float, N> first;
    Group<float, N> second;
    Group<float, N> third;
  };

  Division division(int64_t numel) const {
    return divide(numel, kWidth,
                  {{gradient, sizeof(Gradient)},
                   state.array(0),
                   state.array(1),
                   state.array(2),
                   state.array(3),
                   {rounded, sizeof(uint16_t)}});
  }

  template <int N>
  ZERORUN_HOST_DEVICE Taken<N> take(int64_t index) const {
    Taken<N> taken;
    taken.gradient = load<N>(gradient + index);
    taken.values = state.template load_from<0, N>(index);
    if constexpr (Rule::kMoments > 0) taken.first = state.template load_from<1, N>(index);
    if constexpr (Rule::kMoments > 1) taken.second = state.template load_from<2, N>(index);
    if constexpr (Rule::kMoments > 2) taken.third = state.template load_from<3, N>(index);
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
    state.template store_to<0>(index, taken.values);
    if constexpr (Rule::kMoments > 0) state.template store_to<1>(index, taken.first);
    if constexpr (Rule::kMoments > 1) state.template store_to<2>(index, taken.second);
    if constexpr (Rule::kMoments > 2) state.template store_to<3>(index, taken.third);
    if (rounded == nullptr) return;
    if (rounded_dtype == Dtype::bf16) round_to<Bf16>(index, taken.values);
    if (rounded_dtype == Dtype::fp16) round_to<Fp16>(index, taken.values);
  }

 private:
  template <typename To, int N>
  ZERORUN_HOST_DEVICE void round_to(int64_t index, const Group<float, N>& results) const {
    Group<To, N> result;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) result.values[i] = narrow<To>(results.values[i]);
    store<N>(static_cast<To*>(rounded) + index, result);
  }
};

/// The work of one thread on one element of a block whose moments are codes (device/moment_codes.h). The
/// block's threads call update(), find their largest keys, and pass them to store(). State: WideState or
/// NarrowState, for the values.
template <typename Rule, typename Gradient, typename State>
struct CodedUpdate {
  static constexpr bool kHasSecond = Rule::kMoments > 1;
  Rule rule;
  const Gradient* gradient;
  State state;
  uint8_t* first;
  uint8_t* second;
  float* first_scales;
  float* second_scales;
  void* rounded;  // null: rounded values are not written
  Dtype rounded_dtype;
  int64_t numel;
  float factor = 0;  // StepFacts::factor

  CodedUpdate(const Rule& formula, const UpdateSpan& span)
      : rule(formula),
        gradient(static_cast<const Gradient*>(span.gradient)),
        state(span),
        first(static_cast<uint8_t*>(span.first)),
        second(static_cast<uint8_t*>(span.second)),
        first_scales(span.first_scales),
        second_scales(span.second_scales),
        rounded(span.rounded),
        rounded_dtype(span.rounded_dtype),
        numel(span.numel) {}

  /// Writes the new value, and returns the element with its new moments.
  ZERORUN_HOST_DEVICE Element update(int64_t index, const CodeBook& with_signs,
                                     const CodeBook& without_signs) const {
    const int64_t block = index / kCodedBlock;
    Element element{state.template load_from<0, 1>(index).values[0], 0, 0, 0};
    element.first = decode(with_signs, first[index], first_scales[block]);
    if constexpr (kHasSecond) element.second = decode(without_signs, second[index], second_scales[block]);
    rule.apply(widen(gradient[index]) * factor, element);
    state.template store_to<0>(index, Group<float, 1>{{element.value}});
    if (rounded != nullptr && rounded_dtype == Dtype::bf16)
      static_cast<Bf16*>(rounded)[index] = narrow<Bf16>(element.value);
    if (rounded != nullptr && rounded_dtype == Dtype::fp16)
      static_cast<Fp16*>(rounded)[index] = narrow<Fp16>(element.value);
    return element;
  }

  ZERORUN_HOST_DEVICE void store(int64_t index, const Element& element, uint32_t first_key,
                                 uint32_t second_key, const CodeLimits& with_signs,
                                 const CodeLimits& without_signs) const {
    store_code(index, element.first, first_key, with_signs, first, first_scales);
    if constexpr (kHasSecond)
      store_code(index, element.second, second_key, without_signs, second, second_scales);
  }

 private:
  ZERORUN_HOST_DEVICE static void store_code(int64_t index, float moment, uint32_t key,
                                             const CodeLimits& limits, uint8_t* codes, float* scales) {
    const float scale = scale_of_key(key);
    codes[index] = has_codes(scale) ? encode(limits, moment, scale) : 0;
    if (index % kCodedBlock == 0) scales[index / kCodedBlock] = scale;
  }
};

}  // namespace zerorun::cuda
