#include "zero/buffer_pool.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <utility>

#include "base/memory_report.h"

namespace zerorun {
namespace {

int64_t capacity(const CommunicationBuffer& buffer) {
  return static_cast<int64_t>(buffer.memory.storage().nbytes()) / buffer.memory.element_size();
}

}  // namespace

CommunicationBuffer BufferPool::take(int64_t numel) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (capacity(*it) >= numel && (best == free_.end() || capacity(*it) < capacity(*best))) best = it;
  }
  CommunicationBuffer buffer;
  if (best != free_.end()) {
    buffer = std::move(*best);
    free_.erase(best);
  } else {
    const AllocatingFor scope(
        MemoryUse::buckets, std::max(numel, common_numel_) * static_cast<int64_t>(c10::elementSize(dtype_)));
    // Allocated by the device: the communicator's allocate() is a collective, and take() is not.
    buffer = own(communicator_->device().allocate(std::max(numel, common_numel_), dtype_));
  }
  buffer.memory = buffer.memory.as_strided({numel}, {1}, 0);
  return buffer;
}

void BufferPool::reserve(int count) {
  const AllocatingFor scope(MemoryUse::buckets,
                            count * common_numel_ * static_cast<int64_t>(c10::elementSize(dtype_)));
  for (int made = 0; made < count; ++made) {
    CommunicationBuffer buffer = own(communicator_->allocate(common_numel_, dtype_));
    buffer.reserved = true;
    give_back(std::move(buffer));
  }
}

void BufferPool::trim(int count) {
  std::ranges::stable_sort(free_, std::greater<>(), capacity);
  int larger = 0;
  std::erase_if(free_, [&](const CommunicationBuffer& buffer) {
    const bool stays = buffer.reserved || (capacity(buffer) > common_numel_ && larger++ < count);
    if (!stays) bytes_ -= static_cast<int64_t>(buffer.memory.storage().nbytes());
    return !stays;
  });
}

CommunicationBuffer BufferPool::own(at::Tensor memory) {
  CommunicationBuffer buffer{.memory = std::move(memory), .free = {}};
  Streams& streams = communicator_->device().streams();
  streams.record(buffer.free, streams.current());
  bytes_ += static_cast<int64_t>(buffer.memory.nbytes());
  return buffer;
}

}  // namespace zerorun
