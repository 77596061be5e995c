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
    buffer = communicator_->allocate(std::max(numel, common_numel_), at::kFloat);
    bytes_ += static_cast<int64_t>(buffer.nbytes());
  }
  return buffer.as_strided({numel}, {1}, 0);
}

void BufferPool::free_all() {
  for (const at::Tensor& buffer : free_) bytes_ -= static_cast<int64_t>(buffer.storage().nbytes());
  free_.clear();
}

}  // namespace zerorun
