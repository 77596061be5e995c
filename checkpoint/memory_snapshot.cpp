#include "checkpoint/memory_snapshot.h"

#include <cstring>

#include "base/error.h"
#include "base/memory_report.h"

namespace zerorun::checkpoint {

void MemorySnapshot::take(int64_t offset, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  const auto end = offset + static_cast<int64_t>(into.size());
  ZR_CHECK(offset >= taken_ && end <= static_cast<int64_t>(live_.size()), "bytes that were taken before");
  const std::byte* source = is_kept_ ? kept_.get() + (offset - kept_from_) : live_.data() + offset;
  std::memcpy(into.data(), source, into.size());
  taken_ = end;
}

int64_t MemorySnapshot::keep() {
  const std::lock_guard lock(mutex_);
  if (is_kept_) return 0;
  const auto rest = live_.subspan(static_cast<size_t>(taken_));
  const AllocatingFor scope(MemoryUse::checkpoint, static_cast<int64_t>(rest.size()));
  kept_ = std::make_unique_for_overwrite<std::byte[]>(rest.size());
  std::memcpy(kept_.get(), rest.data(), rest.size());
  kept_from_ = taken_;
  is_kept_ = true;
  return static_cast<int64_t>(rest.size());
}

}  // namespace zerorun::checkpoint
