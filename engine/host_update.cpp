#include "engine/host_update.h"

#include <variant>

#include "device/dtypes.h"

namespace zerorun {

// Muon makes directions of whole matrices, which is work for the GPU that has the gradients.
bool updates_on_host(const Config& config, Device& device) {
  const bool is_muon = config.optimizer && std::holds_alternative<MuonConfig>(*config.optimizer);
  return device.streams().asynchronous() && config.zero.stage > 0 && !is_muon &&
         config.zero.offload_optimizer.device != OffloadDevice::none;
}

HostUpdate::HostUpdate(const Buckets& buckets, const GradientReducer& reducer, Device& device)
    : buckets_(&buckets), reducer_(&reducer), device_(&device) {
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket)
    values_.push_back(
        device.allocate_on_host(buckets.layout(bucket).slice_numel, scalar_type(buckets.dtype())));
}

void HostUpdate::take_exact(int bucket, int64_t begin, const at::Tensor& exact) {
  if (buckets_->dtype() != Dtype::fp32) return;
  device_->host().copy(values_[bucket].narrow(0, begin, exact.numel()), exact);
}

void HostUpdate::send_up(int bucket) {
  device_->copy(buckets_->shard(bucket), values_[bucket]);
}

int64_t HostUpdate::bytes() const {
  int64_t total = 0;
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket)
    total += static_cast<int64_t>(values_[bucket].nbytes() + reducer_->on_host(bucket).nbytes());
  return total;
}

}  // namespace zerorun
