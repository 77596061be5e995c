// The only place where gradients of several CPU ranks are added (NCCL adds those of GPUs).
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace zerorun {

/// output[i] = ((slices[0][i] + slices[1][i]) + slices[2][i]) + ...: always in rank order, so every
/// communicator gives the same bits. `slices` are as long as `output`, one for each rank; one of them may
/// be `output`. dtypes: float32, float64, int64; bfloat16 and float16 are added in float32 and rounded
/// once, at the end.
void sum_in_rank_order(const at::Tensor& output, std::span<const void* const> slices);

}  // namespace zerorun
