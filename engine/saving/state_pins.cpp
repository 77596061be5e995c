#include "engine/saving/state_pins.h"

#include <span>
#include <utility>

#include "base/memory_report.h"

namespace zerorun {
namespace {

struct PinnedTensor {
  explicit PinnedTensor(at::Tensor given)
      : tensor(std::move(given)),
        bytes({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}) {}

  at::Tensor tensor;
  checkpoint::MemorySnapshot bytes;
};

}  // namespace

std::shared_ptr<checkpoint::MemorySnapshot> pinned(at::Tensor tensor) {
  auto holder = std::make_shared<PinnedTensor>(std::move(tensor));
  return {holder, &holder->bytes};
}

void StatePins::begin() {
  next_on_host_ = 0;
  Streams& streams = device_->streams();
  if (!streams.asynchronous()) return;
  Event ready;
  streams.record(ready, streams.current());
  streams.wait(ready, streams.of(Lane::copy), Handover::saved);
}

std::shared_ptr<checkpoint::MemorySnapshot> StatePins::pin(const at::Tensor& tensor, CopyTime time) {
  const AllocatingFor scope(MemoryUse::checkpoint, static_cast<int64_t>(tensor.nbytes()));
  if (!device_->streams().asynchronous()) return pinned(time == CopyTime::at_once ? tensor.clone() : tensor);
  at::Tensor copy = host_memory(tensor);
  if (time == CopyTime::at_once) {
    device_->copy(copy, tensor);
  } else {
    const StreamScope scope(device_->streams(), Lane::copy);
    device_->copy(copy, tensor);
  }
  return pinned(std::move(copy));
}

void StatePins::end() {
  Streams& streams = device_->streams();
  if (!streams.asynchronous()) return;
  Event at_once;
  streams.record(at_once, streams.current());
  streams.wait(at_once, streams.of(Lane::copy), Handover::saved);
  streams.record(copied_, streams.of(Lane::copy));
}

void StatePins::await(std::chrono::milliseconds timeout) const {
  device_->streams().await(copied_, timeout, "the copy of the state for a checkpoint");
}

void StatePins::before_change() const {
  Streams& streams = device_->streams();
  if (streams.asynchronous()) streams.wait(copied_, streams.current(), Handover::saved);
}

at::Tensor StatePins::host_memory(const at::Tensor& like) {
  if (next_on_host_ == on_host_.size()) on_host_.emplace_back();
  at::Tensor& memory = on_host_[next_on_host_++];
  if (!memory.defined() || memory.numel() != like.numel() || memory.scalar_type() != like.scalar_type())
    memory = device_->allocate_on_host(like.numel(), like.scalar_type());
  return memory;
}

}  // namespace zerorun
