// The loss of an output layer, without the logits of all tokens at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace zerorun {

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;  // tokens with this label are left out
  bool sums = false;            // the sum over tokens instead of their mean
  int64_t tokens = 0;           // how many are computed at a time; 0: so many that their logits take 64 MiB
};

/// cross_entropy(x W^T + bias, labels), computed for some tokens at a time in forward and again in backward:
/// in memory are the logits of these tokens, in fp32, instead of those of all. x: (..., hidden), weight:
/// (vocab, hidden), bias: (vocab), labels: (...) int64. Returns a scalar in fp32. Gradients of weight and
/// bias are added up in fp32. Throws UserError if shapes do not fit, if tensor ranks split the weight, or in
/// a backward that is to be differentiated itself.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                const std::optional<at::Tensor>& bias = {},
                                const LinearCrossEntropyOptions& options = {});

}  // namespace zerorun
