// Counts the bytes that LibTorch's allocators hand out on a thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace zerorun::testing {

/// Counts as long as it lives.
class AllocatedBytes {
 public:
  AllocatedBytes()
      : reports_(std::make_shared<Reports>()), guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}

  /// Allocated and not freed.
  int64_t now() const { return reports_->bytes; }
  /// The largest value of now() so far.
  int64_t peak() const { return reports_->peak; }

 private:
  struct Reports : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      bytes += size;
      peak = std::max(peak, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
    int64_t peak = 0;
  };
  std::shared_ptr<Reports> reports_;
  c10::DebugInfoGuard guard_;
};

}  // namespace zerorun::testing
