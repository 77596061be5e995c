// One step of an optimizer over memory: gradient, values and moments are read once; values, moments and the
// rounded 16-bit values are written once. Pure functions on memory, no LibTorch; any thread. Every element is
// computed by itself in float32: neither the slicing into spans nor the instruction set changes a bit.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"
#include "device/update_rules.h"

namespace zerorun {

/// Equally many elements of everything that a step reads and writes, without overlap.
struct UpdateSpan {
  int64_t numel;
  const void* gradient;
  Dtype gradient_dtype;
  float* values;
  float* first = nullptr;   // first moment: Adam's exp_avg, SGD's momentum buffer
  float* second = nullptr;  // second moment: Adam's exp_avg_sq
  float* third = nullptr;   // third moment: AMSGrad's max_exp_avg_sq
  void* rounded = nullptr;  // receives `values` rounded; null: not wanted
  Dtype rounded_dtype = Dtype::bf16;

  UpdateSpan slice(int64_t begin, int64_t length) const;
};

/// One step of `rule`, any of update_rules.h, for every element, whose gradient is multiplied with `factor`
/// before.
template <typename Rule>
void update(const Rule& rule, float factor, const UpdateSpan& span, Simd simd = widest_simd());

}  // namespace zerorun
