// Makes matrices nearly orthogonal for Muon's update. Pure functions of tensors, any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace zerorun {

/// Five steps of the quintic Newton-Schulz iteration (Jordan et al. 2024, "Muon") on the matrices in the last
/// two dimensions of `matrices`, float32. First each matrix is divided by its Frobenius norm. The result has
/// the singular vectors of the divided matrix, and for each of its singular values s the singular value
/// q(q(q(q(q(s))))), where q(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5. `gram` iterates on the Gram matrix of
/// the shorter dimension, which gives the same result in exact arithmetic and is cheaper for long matrices.
/// On a GPU `gram` computes in float16 and `standard` in bfloat16 (DeepSpeed's original_muon.py); on the CPU
/// both compute in float32.
at::Tensor orthogonalized(const at::Tensor& matrices, NewtonSchulz method);

}  // namespace zerorun
