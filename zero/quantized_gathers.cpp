#include "zero/quantized_gathers.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/memory_report.h"

namespace zerorun {
namespace {

constexpr float kLargest = 127;
constexpr int64_t kScaleBytes = sizeof(float);

int64_t blocks_of(int64_t numel) {
  return (numel + QuantizedGathers::kBlock - 1) / QuantizedGathers::kBlock;
}

int64_t bytes_of(int64_t numel) {
  return blocks_of(numel) * (QuantizedGathers::kBlock + kScaleBytes);
}

}  // namespace

QuantizedGathers::QuantizedGathers(bool enabled, int buckets, Communicator& communicator)
    : enabled_(enabled),
      communicator_(&communicator),
      gathered_(static_cast<size_t>(enabled ? buckets : 0)) {}

std::unique_ptr<Work> QuantizedGathers::gather(int bucket, const at::Tensor& own, std::string label,
                                               std::string reason) {
  const c10::NoGradGuard no_grad;
  const AllocatingFor scope(MemoryUse::gathered);
  const int64_t bytes = bytes_of(own.numel());
  at::Tensor& gathered = gathered_[bucket];
  gathered = at::empty({communicator_->world_size() * bytes}, own.options().dtype(at::kByte));
  const at::Tensor mine = gathered.narrow(0, communicator_->rank() * bytes, bytes);
  mine.copy_(quantized(own));
  return communicator_->all_gather(gathered, mine, std::move(label), std::move(reason));
}

void QuantizedGathers::decode(int bucket, const at::Tensor& memory) {
  if (!enabled_ || !gathered_[bucket].defined()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor gathered = std::exchange(gathered_[bucket], at::Tensor());
  const int64_t ranks = communicator_->world_size();
  const int64_t bytes = gathered.numel() / ranks, slice = memory.numel() / ranks;
  for (int64_t rank = 0; rank < ranks; ++rank)
    dequantize(gathered.narrow(0, rank * bytes, bytes), memory.narrow(0, rank * slice, slice));
}

at::Tensor quantized(const at::Tensor& values) {
  if (values.is_meta())
    return at::empty({bytes_of(values.numel())}, values.options().dtype(at::kByte));  // a plan
  const int64_t blocks = blocks_of(values.numel());
  const at::Tensor exact =
      at::constant_pad_nd(values.to(at::kFloat), {0, blocks * QuantizedGathers::kBlock - values.numel()})
          .view({blocks, QuantizedGathers::kBlock});
  const at::Tensor scales = exact.abs().amax({1}, /*keepdim=*/true).div_(kLargest);
  // A block of zeros has the scale 0. NaN and infinity make all values of their block NaN.
  const at::Tensor rounded = (exact / at::where(scales == 0, 1.0F, scales)).round_().to(at::kChar);
  return at::cat({rounded.view({-1}).view(at::kByte), scales.view({-1}).view(at::kByte)});
}

void dequantize(const at::Tensor& bytes, const at::Tensor& values) {
  if (values.is_meta()) return;
  const int64_t blocks = blocks_of(values.numel());
  const int64_t padded = blocks * QuantizedGathers::kBlock;
  const at::Tensor rounded = bytes.narrow(0, 0, padded).view(at::kChar).view({blocks, -1}).to(at::kFloat);
  // Copied, because float32 must lie at multiples of 4 bytes.
  const at::Tensor scales =
      bytes.narrow(0, padded, blocks * kScaleBytes).clone().view(at::kFloat).view({blocks, 1});
  values.copy_(rounded.mul_(scales).view({-1}).narrow(0, 0, values.numel()));
}

}  // namespace zerorun
