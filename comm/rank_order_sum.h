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
void sum_in_rank_order(const at::Tensor& output, std::span<const void* const> slices);

}  // namespace zerorun
