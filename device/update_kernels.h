// One optimizer step over memory, which reads gradient, values and moments once and writes values, moments
// and the rounded 16-bit values once. Pure functions on memory, no LibTorch; any thread. Elements are
// independent and computed in float32: neither the split into spans nor the instruction set changes a bit.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"
#include "device/update_rules.h"

namespace zerorun {

/// The arrays that a step reads and writes: `numel` elements each, without overlap.
struct UpdateSpan {
  int64_t numel;
  const void* gradient;
  Dtype gradient_dtype;
  float* values;
  float* first = nullptr;   // first moment: Adam's exp_avg, SGD's momentum buffer
  float* second = nullptr;  // second moment: Adam's exp_avg_sq
  float* third = nullptr;   // third moment: AMSGrad's max_exp_avg_sq
  void* rounded = nullptr;  // receives `values` rounded; null: not written
  Dtype rounded_dtype = Dtype::bf16;

  UpdateSpan slice(int64_t begin, int64_t length) const;
};

/// One step of `rule` for every element, with gradients multiplied by `factor`.
void update(const UpdateRule& rule, float factor, const UpdateSpan& span, Simd simd = widest_simd());

}  // namespace zerorun
