#include "zero/buffer_pool.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <utility>

namespace zerorun {
namespace {

int64_t capacity(const TravelBuffer& buffer) {
  return static_cast<int64_t>(buffer.memory.storage().nbytes()) / buffer.memory.element_size();
}

}  // namespace

TravelBuffer BufferPool::take(int64_t numel) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (capacity(*it) >= numel && (best == free_.end() || capacity(*it) < capacity(*best))) best = it;
  }
  TravelBuffer buffer;
  if (best != free_.end()) {
    buffer = std::move(*best);
    free_.erase(best);
  } else {
    buffer = make(std::max(numel, common_numel_));
  }
  buffer.memory = buffer.memory.as_strided({numel}, {1}, 0);
  return buffer;
}

void BufferPool::reserve(int count) {
  for (int made = 0; made < count; ++made) give_back(make(common_numel_));
}

void BufferPool::trim(int count) {
  std::ranges::stable_sort(free_, std::greater<>(), capacity);
  while (static_cast<int>(free_.size()) > count) {
    bytes_ -= static_cast<int64_t>(free_.back().memory.storage().nbytes());
    free_.pop_back();
  }
}

TravelBuffer BufferPool::make(int64_t numel) {
  TravelBuffer buffer{.memory = communicator_->allocate(numel, dtype_), .free = {}};
  Streams& streams = communicator_->device().streams();
  streams.record(buffer.free, streams.current());
  bytes_ += static_cast<int64_t>(buffer.memory.nbytes());
  return buffer;
}

}  // namespace zerorun
