// Counts the bytes that LibTorch's allocators hand out on a thread.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace zerorun {

/// During its lifetime the calling thread's allocations and frees are counted. A profiler of the program sees
/// none of them meanwhile.
class MeasuredMemory {
 public:
  MeasuredMemory();
  ~MeasuredMemory();
  MeasuredMemory(const MeasuredMemory&) = delete;
  MeasuredMemory& operator=(const MeasuredMemory&) = delete;

  /// Bytes allocated, less those freed.
  int64_t held() const;

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace zerorun
