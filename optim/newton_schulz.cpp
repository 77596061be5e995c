#include "optim/newton_schulz.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>

namespace zerorun {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;
constexpr double kEps = 1e-7;

at::Tensor iterate(at::Tensor x) {
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor a = at::matmul(x, x.mT());
    const at::Tensor b = kB * a + at::matmul(kC * a, a);
    x = kA * x + at::matmul(b, x);
  }
  return x;
}

// Computes x = q x_0, where q is a polynomial in the Gram matrix r of x_0. In half precision the error of r
// grows with each step, so x and r are recomputed once, before step kRestart.
at::Tensor iterate_on_gram(at::Tensor x) {
  constexpr int kRestart = 2;
  at::Tensor r = at::matmul(x, x.mT());
  at::Tensor q;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kRestart) {
      x = at::matmul(q, x);
      r = at::matmul(x, x.mT());
      q.reset();
    }
    const at::Tensor z = kB * r + at::matmul(kC * r, r);
    if (q.defined()) {
      q = kA * q + at::matmul(z, q);
    } else {
      q = z.clone();
      q.diagonal(0, -2, -1).add_(kA);
    }
    if (step + 1 < kSteps && step + 1 != kRestart) {
      const at::Tensor rz = kA * r + at::matmul(z, r);
      r = kA * rz + at::matmul(z, rz);
    }
  }
  return at::matmul(q, x);
}

}  // namespace

at::Tensor orthogonalized(const at::Tensor& matrices, NewtonSchulz method) {
  c10::NoGradGuard no_grad;
  const bool gram = method == NewtonSchulz::gram;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  at::Tensor x = tall ? matrices.mT() : matrices;
  // Normalised before the conversion, since gradients can exceed float16's range.
  x = x / (at::linalg_vector_norm(x, 2, {-2, -1}, true) + kEps);
  if (x.is_cuda()) x = x.to(gram ? at::kHalf : at::kBFloat16);
  x = gram && x.size(-2) < x.size(-1) ? iterate_on_gram(x) : iterate(x);
  return (tall ? x.mT() : x).to(at::kFloat);
}

}  // namespace zerorun
