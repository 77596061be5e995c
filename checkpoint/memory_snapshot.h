// A snapshot of memory at the start of a save, without a copy as long as nobody changes the memory: the
// writer reads it in pieces, and whoever is about to change it first copies the part that has not been read
// yet. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace zerorun {

class MemorySnapshot {
 public:
  /// `live` must stay valid until the first keep(), or as long as this object.
  explicit MemorySnapshot(std::span<const std::byte> live) : live_(live) {}
  MemorySnapshot(const MemorySnapshot&) = delete;
  MemorySnapshot& operator=(const MemorySnapshot&) = delete;

  /// Copies the snapshot from `offset` on to `into`. Each call must start at or after the end of the one
  /// before.
  void take(int64_t offset, std::span<std::byte> into);
  /// Must be called before `live` changes; after it returns, nobody reads `live`. Returns how many bytes it
  /// copied.
  int64_t keep();

 private:
  std::mutex mutex_;
  std::span<const std::byte> live_;
  int64_t taken_ = 0;  // bytes before it have been read
  bool is_kept_ = false;
  std::unique_ptr<std::byte[]> kept_;  // the snapshot from kept_from_ on
  int64_t kept_from_ = 0;
};

}  // namespace zerorun
