// Buffers of collectives, which are kept for reuse. Their count never exceeds the largest count that was in
// use at the same time. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace zerorun {

class ScratchBuffers {
 public:
  /// In memory of the CPU whose bytes are not set.
  ScratchBuffers() = default;
  /// `allocate`: makes a buffer of so many bytes.
  explicit ScratchBuffers(std::function<at::Tensor(int64_t bytes)> allocate);

  at::Tensor take(int64_t numel, at::ScalarType dtype);
  void give_back(const at::Tensor& tensor);
  int64_t bytes() const { return bytes_; }

 private:
  std::function<at::Tensor(int64_t bytes)> allocate_;
  std::mutex mutex_;
  std::vector<at::Tensor> free_;  // each covers its whole storage, as bytes
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace zerorun
