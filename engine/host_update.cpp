#include "engine/host_update.h"

#include <variant>

#include "base/memory_report.h"
#include "device/dtypes.h"
#include "engine/state_placement.h"

namespace zerorun {

// False with Muon: it orthogonalizes whole matrices, which is work for the GPU, where the gradients are.
bool updates_on_host(const Config& config, Device& device) {
  const bool is_muon = config.optimizer && std::holds_alternative<MuonConfig>(*config.optimizer);
  return device.streams().asynchronous() && !is_muon && optimizer_offload(config.zero) != OffloadDevice::none;
}

// False if the GPU updates the slices, because these stay in the GPU's memory.
bool shards_off_gpu(const Config& config, Device& device) {
  return updates_on_host(config, device) && parameter_offload(config.zero) != OffloadDevice::none;
}

HostUpdate::HostUpdate(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
                       Communicator& communicator)
    : buckets_(&buckets), communicator_(&communicator), device_(&communicator.device()) {
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    bytes_ += static_cast<int64_t>(reducer.on_host(bucket).nbytes());
    const at::Tensor& shard = buckets.shard(bucket);
    if (buckets.shard_is_fetched(bucket)) {
      values_.push_back(shard);
    } else if (!buckets.masters().are_rounded() && store.at(bucket, kMaster).home == Home::host) {
      values_.push_back(store.at(bucket, kMaster).own);
    } else {
      const AllocatingFor scope(MemoryUse::on_host, static_cast<int64_t>(shard.nbytes()));
      values_.push_back(device_->allocate_on_host(shard.numel(), shard.scalar_type()));
      bytes_ += static_cast<int64_t>(shard.nbytes());
    }
  }
}

void HostUpdate::copy_master(int bucket, int64_t begin, const at::Tensor& exact) {
  if (buckets_->masters().are_rounded() || values_[bucket].is_alias_of(exact)) return;
  device_->host().copy(values_[bucket].narrow(0, begin, exact.numel()), exact);
}

void HostUpdate::send_to_gpu(int bucket) {
  if (buckets_->shard_is_fetched(bucket)) return;
  device_->copy(buckets_->shard(bucket), values_[bucket]);
}

void HostUpdate::hand_over_to(StreamId stream) {
  Streams& streams = device_->streams();
  streams.record(arrived_, streams.of(Lane::copy));
  streams.wait(arrived_, stream, Handover::updated);
}

void HostUpdate::await_arrival() {
  Streams& streams = device_->streams();
  streams.record(arrived_, streams.of(Lane::copy));
  streams.await(arrived_, communicator_->timeout(), "the last values on their way to the GPU");
}

}  // namespace zerorun
