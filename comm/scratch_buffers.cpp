#include "comm/scratch_buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include <utility>

#include "base/memory_report.h"

namespace zerorun {

ScratchBuffers::ScratchBuffers(std::function<at::Tensor(int64_t bytes)> allocate)
    : allocate_(std::move(allocate)) {}

at::Tensor ScratchBuffers::take(int64_t numel, at::ScalarType dtype) {
  std::lock_guard lock(mutex_);
  const int64_t wanted = numel * static_cast<int64_t>(c10::elementSize(dtype));
  auto best = free_.end();
  auto largest = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (largest == free_.end() || it->numel() > largest->numel()) largest = it;
    if (it->numel() >= wanted && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  at::Tensor bytes;
  if (best != free_.end()) {
    bytes = std::move(*best);
    free_.erase(best);
  } else {
    if (largest != free_.end()) {  // all are too small: a new one replaces the largest
      bytes_ -= largest->numel();
      free_.erase(largest);
    }
    const AllocatingFor scope(MemoryUse::messages, wanted);
    bytes = allocate_ ? allocate_(wanted) : at::empty({wanted}, at::TensorOptions().dtype(at::kByte));
    bytes_ += wanted;
  }
  return bytes.narrow(0, 0, wanted).view(dtype);
}

void ScratchBuffers::give_back(const at::Tensor& tensor) {
  std::lock_guard lock(mutex_);
  const int64_t capacity = static_cast<int64_t>(tensor.storage().nbytes());
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte));
  free_.push_back(bytes.set_(tensor.storage(), 0, {capacity}, {1}));
}

}  // namespace zerorun
