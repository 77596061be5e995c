#include "zero/master_weights.h"

#include <algorithm>

#include "base/memory_report.h"
#include "device/dtypes.h"

namespace zerorun {

MasterWeights::MasterWeights(SliceStore& store, Communicator& communicator, const BucketOptions& options)
    : store_(&store),
      communicator_(&communicator),
      device_(&communicator.device()),
      options_(options),
      written_(store.count()) {}

void MasterWeights::keep(int bucket, const at::Tensor& exact) {
  if (!has(bucket)) return;
  const at::Tensor own =
      options_.whole_master ? exact : store_->slice_of(bucket, exact, communicator_->rank());
  if (store_->has(bucket, kMaster)) {  // in files
    const StateTensor& master = store_->at(bucket, kMaster);
    store_->for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
      const auto [begin, numel] = store_->chunk_range(bucket, chunk);
      master.chunks[chunk].copy_(own.narrow(0, begin, numel));
    });
    return;
  }
  const at::ScalarType dtype = scalar_type(options_.master);
  const AllocatingFor scope(options_.master_on_host ? MemoryUse::on_host : MemoryUse::master,
                            own.numel() * size_of(options_.master));
  at::Tensor master = options_.master_on_host ? device_->allocate_on_host(own.numel(), dtype)
                                              : device_->allocate(own.numel(), dtype);
  store_->put(bucket, StateKind::master, kMaster, options_.whole_master ? Extent::bucket : Extent::slice,
              master.copy_(own), options_.master_on_host ? Home::host : Home::device);
}

void MasterWeights::follow_writes() {
  for (int bucket = 0; bucket < store_->count(); ++bucket) {
    if (!written_[bucket]) continue;
    if (has(bucket)) follow_writes(bucket);
    written_[bucket] = false;
  }
}

void MasterWeights::follow_writes(int bucket) {
  const StateTensor& master = store_->at(bucket, kMaster);
  const StateTensor& values = store_->at(bucket, kValue);
  if (options_.whole_master) return device_->follow_written(master.memory, values.memory);
  store_->with_values(bucket, ValueUse::read, [&] {
    const at::Tensor written = options_.master_on_host ? written_on_host(bucket) : values.own;
    store_->for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
      const auto [begin, numel] = store_->chunk_range(bucket, chunk);
      const at::Tensor written_chunk = written.narrow(0, begin, numel);
      const at::Tensor exact = store_->chunk(bucket, master, chunk);
      Device& where = options_.master_on_host ? device_->host() : *device_;
      if (!are_rounded()) return where.copy(exact, written_chunk);
      where.follow_written(exact, written_chunk);
    });
  });
}

// Returns the shard in host memory, with all writes of the current stream. Called only if the program has
// written to the bucket.
at::Tensor MasterWeights::written_on_host(int bucket) {
  const StateTensor& values = store_->at(bucket, kValue);
  const at::Tensor& written = values.own;
  // Residency::start_update() has waited for the writes.
  if (values.home == Home::file || values.home == Home::host) return written;
  if (!on_host_.defined() || on_host_.numel() < written.numel())
    on_host_ = device_->allocate_on_host(written.numel(), written.scalar_type());
  const at::Tensor copy = on_host_.narrow(0, 0, written.numel());
  device_->copy(copy, written);
  Streams& streams = device_->streams();
  Event copied;
  streams.record(copied, streams.current());
  streams.await(copied, communicator_->timeout(), "what was written to bucket " + std::to_string(bucket));
  return copy;
}

}  // namespace zerorun
