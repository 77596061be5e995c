#include "zero/quantized_gathers.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "base/memory_report.h"
#include "zero/quantized_values.h"

namespace zerorun {

QuantizedGathers::QuantizedGathers(bool enabled, int buckets, Communicator& communicator)
    : enabled_(enabled),
      communicator_(&communicator),
      gathered_(static_cast<size_t>(enabled ? buckets : 0)) {}

std::unique_ptr<Work> QuantizedGathers::gather(int bucket, const at::Tensor& own, std::string label,
                                               std::string reason) {
  const c10::NoGradGuard no_grad;
  const AllocatingFor scope(MemoryUse::gathered);
  const int64_t bytes = quantized_bytes(own.numel());
  at::Tensor& gathered = gathered_[bucket];
  gathered = at::empty({communicator_->world_size() * bytes}, own.options().dtype(at::kByte));
  const at::Tensor mine = gathered.narrow(0, communicator_->rank() * bytes, bytes);
  mine.copy_(quantized(own));
  return communicator_->all_gather(gathered, mine, std::move(label), std::move(reason));
}

void QuantizedGathers::decode(int bucket, const at::Tensor& memory) {
  if (!enabled_ || !gathered_[bucket].defined()) return;
  const c10::NoGradGuard no_grad;
  const AllocatingFor scope(MemoryUse::gathered);
  const at::Tensor gathered = std::exchange(gathered_[bucket], at::Tensor());
  const int64_t ranks = communicator_->world_size();
  const int64_t bytes = gathered.numel() / ranks, slice = memory.numel() / ranks;
  for (int64_t rank = 0; rank < ranks; ++rank)
    dequantize(gathered.narrow(0, rank * bytes, bytes), memory.narrow(0, rank * slice, slice));
}

}  // namespace zerorun
