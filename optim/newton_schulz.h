// Makes matrices nearly orthogonal for Muon's update. Pure functions of tensors, any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace zerorun {

/// Five steps of the quintic Newton-Schulz iteration (Jordan et al. 2024, "Muon") on the matrices in the last
/// two dimensions of `matrices`, float32: a matrix with singular values s, after division by its Frobenius
/// norm, becomes one with the same singular vectors and q(q(q(q(q(s))))) for
/// q(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5. `gram` iterates on the Gram matrix of the shorter dimension,
/// which is the same in exact arithmetic and cheaper for long matrices. On a GPU `gram` computes in float16
/// and `standard` in bfloat16 (DeepSpeed's original_muon.py); on the CPU both compute in float32.
at::Tensor orthogonalized(const at::Tensor& matrices, NewtonSchulz method);

}  // namespace zerorun
