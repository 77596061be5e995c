#include "zero/quantized_values.h"

#include <ATen/ATen.h>

namespace zerorun {
namespace {

constexpr float kLargest = 127;
constexpr int64_t kScaleBytes = sizeof(float);

int64_t blocks_of(int64_t numel) {
  return (numel + kQuantizedBlock - 1) / kQuantizedBlock;
}

}  // namespace

int64_t quantized_bytes(int64_t numel) {
  return blocks_of(numel) * (kQuantizedBlock + kScaleBytes);
}

at::Tensor quantized(const at::Tensor& values) {
  const int64_t blocks = blocks_of(values.numel());
  const at::Tensor exact =
      at::constant_pad_nd(values.to(at::kFloat), {0, blocks * kQuantizedBlock - values.numel()})
          .view({blocks, kQuantizedBlock});
  // By operators that a plan can run on tensors without memory. Adding 0 makes -0 a 0.
  const at::Tensor largest = at::maximum(exact.amax({1}, /*keepdim=*/true), exact.amin({1}, true).neg());
  const at::Tensor scales = (largest / kLargest).add_(0);
  // A block of zeros has the scale 0, and is divided by 1. NaN and infinity make all values of their block
  // NaN.
  const at::Tensor rounded = (exact / (scales + (scales == 0))).round_().to(at::kChar);
  return at::cat({rounded.view({-1}).view(at::kByte), scales.view({-1}).view(at::kByte)});
}

void dequantize(const at::Tensor& bytes, const at::Tensor& values) {
  const int64_t blocks = blocks_of(values.numel());
  const int64_t padded = blocks * kQuantizedBlock;
  const at::Tensor rounded = bytes.narrow(0, 0, padded).view(at::kChar).view({blocks, -1}).to(at::kFloat);
  // Copied, because float32 must lie at multiples of 4 bytes.
  const at::Tensor scales =
      bytes.narrow(0, padded, blocks * kScaleBytes).clone().view(at::kFloat).view({blocks, 1});
  values.copy_(rounded.mul_(scales).view({-1}).narrow(0, 0, values.numel()));
}

}  // namespace zerorun
