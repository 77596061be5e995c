// Memory as it was when a save began, without a copy for as long as nobody changes it: the writer takes it in
// pieces, and whoever is about to change it copies what has not been taken yet. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace zerorun {

class PinnedBytes {
 public:
  /// `live` outlives it, or the first keep().
  explicit PinnedBytes(std::span<const std::byte> live) : live_(live) {}
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

  /// Copies what `live` had from `offset` on. Each call goes on behind the one before.
  void take(int64_t offset, std::span<std::byte> into);
  /// To be called before `live` changes: from its return on nobody reads it. Returns how many bytes that has
  /// copied.
  int64_t keep();

 private:
  std::mutex mutex_;
  std::span<const std::byte> live_;
  int64_t taken_ = 0;  // what lies before is not asked for again
  bool is_kept_ = false;
  std::unique_ptr<std::byte[]> kept_;  // from kept_from_ on
  int64_t kept_from_ = 0;
};

}  // namespace zerorun
