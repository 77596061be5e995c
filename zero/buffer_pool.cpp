#include "zero/buffer_pool.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>

namespace zerorun {
namespace {

int64_t capacity(const at::Tensor& buffer) {
  return static_cast<int64_t>(buffer.storage().nbytes()) / buffer.element_size();
}

}  // namespace

at::Tensor BufferPool::take(int64_t numel) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (capacity(*it) >= numel && (best == free_.end() || capacity(*it) < capacity(*best))) best = it;
  }
  at::Tensor buffer;
  if (best != free_.end()) {
    buffer = std::move(*best);
    free_.erase(best);
  } else {
    buffer = make(std::max(numel, common_numel_));
  }
  return buffer.as_strided({numel}, {1}, 0);
}

void BufferPool::reserve(int count) {
  for (int made = 0; made < count; ++made) give_back(make(common_numel_));
}

void BufferPool::trim(int count) {
  std::sort(free_.begin(), free_.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return capacity(a) > capacity(b); });
  while (static_cast<int>(free_.size()) > count) {
    bytes_ -= static_cast<int64_t>(free_.back().storage().nbytes());
    free_.pop_back();
  }
}

at::Tensor BufferPool::make(int64_t numel) {
  at::Tensor buffer = communicator_->allocate(numel, dtype_);
  bytes_ += static_cast<int64_t>(buffer.nbytes());
  return buffer;
}

}  // namespace zerorun
