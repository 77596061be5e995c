// A snapshot of memory at the start of a save. Nothing is copied in advance: the writer reads the memory
// piece by piece with take(). Code that is about to change the memory first calls keep(), which copies only
// the bytes that take() has not read yet. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace zerorun::checkpoint {

class MemorySnapshot {
 public:
  /// `live` must stay valid until the first keep() or until this object is destroyed.
  explicit MemorySnapshot(std::span<const std::byte> live) : live_(live) {}
  MemorySnapshot(const MemorySnapshot&) = delete;
  MemorySnapshot& operator=(const MemorySnapshot&) = delete;

  /// Fills `into` with the bytes of the snapshot that start at `offset`. Each call must start at or after the
  /// end of the previous call's bytes.
  void take(int64_t offset, std::span<std::byte> into);
  /// Copies the bytes that take() has not read yet, and returns their number. Must be called before `live`
  /// changes. Afterwards this object no longer reads `live`.
  int64_t keep();

 private:
  std::mutex mutex_;
  std::span<const std::byte> live_;
  int64_t taken_ = 0;  // bytes before this offset have been read
  bool is_kept_ = false;
  std::unique_ptr<std::byte[]> kept_;  // copy of the snapshot's bytes from kept_from_ to the end
  int64_t kept_from_ = 0;
};

}  // namespace zerorun::checkpoint
