// Cross entropy of logits whose vocabulary is split among tensor ranks: no rank needs all logits of a token.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/rank_sums.h"

namespace zerorun {

/// The mean over targets other than `ignored` of -log softmax(logits)[target], as at::cross_entropy_loss()
/// of the whole logits, but NaN if a target is outside of the
/// vocabulary. `part`: (N, V_r) floating-point, this rank's part of the logits; `targets`: (N) int64
/// in the whole vocabulary, the same on all ranks; `split`: how the vocabulary is split, in one block. Sends
/// three numbers a row instead of the logits (Megatron-LM, arXiv:1909.08053, section 3). Computed in fp32.
at::Tensor split_cross_entropy(const at::Tensor& part, const at::Tensor& targets, const Split& split,
                               const TensorGroupPtr& group, int64_t ignored = -100);

}  // namespace zerorun
