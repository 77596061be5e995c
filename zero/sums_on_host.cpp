#include "zero/sums_on_host.h"

namespace zerorun {

void SumsOnHost::add_bucket(const at::Tensor& sums) {
  Bucket& bucket = buckets_.emplace_back();
  bucket.sums = sums;
  bucket.memory = device_->allocate_on_host(sums.numel(), sums.scalar_type());
}

void SumsOnHost::start_change(int bucket) {
  if (buckets_.empty()) return;
  streams_->wait(buckets_[bucket].left, streams_->current(), Handover::on_host);
  buckets_[bucket].is_sent = false;
}

void SumsOnHost::send(int bucket) {
  if (buckets_.empty() || buckets_[bucket].is_sent) return;
  Bucket& copied = buckets_[bucket];
  streams_->record(copied.summed, streams_->current());
  StreamScope scope(*streams_, Lane::copy);
  streams_->wait(copied.summed, streams_->current(), Handover::to_host);
  device_->copy(copied.memory, copied.sums);
  streams_->record(copied.left, streams_->current());
  copied.is_sent = true;
}

void SumsOnHost::start_window() {
  for (Bucket& bucket : buckets_) {
    bucket.is_sent = false;
    streams_->wait(bucket.left, streams_->current(), Handover::on_host);
  }
}

}  // namespace zerorun
