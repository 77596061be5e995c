// Adds the gradients of CPU ranks. All communicators for CPU tensors use this one function; NCCL adds on
// GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace zerorun {

/// output[i] = ((slices[0][i] + slices[1][i]) + slices[2][i]) + ..., in rank order, so every communicator
/// gives the same bits. There is one slice per rank, each as long as `output`, and one of them may be
/// `output` itself. Supported dtypes are float32, float64 and int64, and also bfloat16 and float16, which are
/// added in float32 and rounded once.
///
/// `groups`, if not empty, are the sizes of groups of consecutive ranks, whose sums are added in order: with
/// {2, 2} the sum is (slices[0] + slices[1]) + (slices[2] + slices[3]). In bfloat16 and float16 the sum of
/// each group is rounded too, since it may travel between hosts.
void sum_in_rank_order(const at::Tensor& output, std::span<const void* const> slices,
                       std::span<const int> groups = {});

}  // namespace zerorun
