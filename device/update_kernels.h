// One optimizer step over memory, which reads gradient, values and moments once and writes values, moments
// and the rounded 16-bit values once. Pure functions on memory, no LibTorch; any thread. Elements are
// independent and computed in float32, and bfloat16 state is rounded once, at the end: neither the split into
// spans nor the instruction set changes a bit.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"
#include "device/rounding.h"
#include "device/update_rules.h"

namespace zerorun {

/// The arrays that a step reads and writes: `numel` elements each, without overlap.
struct UpdateSpan {
  int64_t numel;
  const void* gradient;
  Dtype gradient_dtype;
  void* values;             // of values_dtype
  void* first = nullptr;    // first moment: Adam's exp_avg, SGD's momentum buffer; of moments_dtype or codes
  void* second = nullptr;   // second moment: Adam's exp_avg_sq
  void* third = nullptr;    // third moment: AMSGrad's max_exp_avg_sq
  void* rounded = nullptr;  // receives `values`, which are float32, rounded to nearest; null: not written
  Dtype rounded_dtype = Dtype::bf16;
  Dtype values_dtype = Dtype::fp32;   // float32 or bfloat16
  Dtype moments_dtype = Dtype::fp32;  // float32 or bfloat16
  RandomRounding rounding = {};       // of bfloat16 values and moments
  /// Of moments in 8 bits (moment_codes.h): those of `first` have signs, those of `second` none. The span
  /// begins with a block.
  float* first_scales = nullptr;
  float* second_scales = nullptr;

  bool is_all_float32() const { return values_dtype == Dtype::fp32 && moments_dtype == Dtype::fp32; }
  bool has_codes() const { return first_scales != nullptr; }

  /// `begin`: with moments in 8 bits, a multiple of kCodedBlock.
  UpdateSpan slice(int64_t begin, int64_t length) const;
};

/// One step of `rule` for every element, with gradients multiplied by `factor`.
void update(const UpdateRule& rule, float factor, const UpdateSpan& span, Simd simd = widest_simd());

}  // namespace zerorun
