// One step of an optimizer over memory: gradient, values and moments are read once; values, moments and the
// rounded 16-bit values are written once. Pure functions on memory, no LibTorch; any thread. Every element is
// computed by itself in float32: neither the slicing into spans nor the instruction set changes a bit.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/simd.h"

namespace zerorun {

/// Equally many elements of everything that a step reads and writes, without overlap.
struct UpdateSpan {
  int64_t numel;
  const void* gradient;
  Dtype gradient_dtype;
  float* values;
  float* first = nullptr;   // first moment: Adam's exp_avg, SGD's momentum buffer
  float* second = nullptr;  // second moment: Adam's exp_avg_sq
  void* rounded = nullptr;  // receives `values` rounded; null: not wanted
  Dtype rounded_dtype = Dtype::bf16;

  UpdateSpan slice(int64_t begin, int64_t length) const;
};

/// Adam (Kingma and Ba; weight decay added to the gradient) and AdamW (Loshchilov and Hutter; decoupled).
struct AdamUpdate {
  float gradient_factor;  // of every gradient, before anything else
  float beta1;
  float new_in_first;  // 1 - beta1
  float beta2;
  float new_in_second;  // 1 - beta2
  float step_size;      // lr / (1 - beta1^t); lr without bias correction
  float root_factor;    // 1 / sqrt(1 - beta2^t); 1 without bias correction
  float eps;
  float gradient_decay;  // Adam: weight decay
  float value_decay;     // AdamW: lr * weight decay
};

/// SGD as PyTorch defines it.
struct SgdUpdate {
  float gradient_factor;
  float lr;
  float gradient_decay;  // weight decay
  float momentum;        // 0: `first` may be null
  float new_in_first;    // 1 - dampening; 1 in the first step
  bool nesterov;
};

void update(const AdamUpdate& rule, const UpdateSpan& span, Simd simd = widest_simd());
void update(const SgdUpdate& rule, const UpdateSpan& span, Simd simd = widest_simd());

}  // namespace zerorun
