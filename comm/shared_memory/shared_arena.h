// Memory of one rank that the other ranks of its host can read: one segment, which all ranks map as a whole
// when they connect. So an offset identifies a place for every rank, and a rank allocates and frees in its
// arena without asking the others. The segment is as large as the machine's memory, but only pages in use
// take memory. Owned by the communicator and by every tensor in it. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/process.h"
#include "comm/shared_memory/shared_segment.h"

namespace zerorun {

/// What the arena allocates is a multiple of this, in bytes.
inline constexpr int64_t kArenaPage = 4096;

class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  explicit SharedArena(SharedSegment segment);
  /// Allocates only among `bytes` bytes from `offset` on.
  SharedArena(SharedSegment segment, int64_t offset, int64_t bytes);

  SharedSegment& segment() { return segment_; }
  const SharedSegment& segment() const { return segment_; }

  /// Returns a zero-filled 1-D tensor, or nothing if there is no room.
  std::optional<at::Tensor> allocate(int64_t numel, at::ScalarType dtype);

  /// take() allocates `bytes` zero-filled bytes and returns their offset, or nothing if there is no room.
  /// give_back() frees them. In a forked child take() returns nothing and give_back() does nothing, since the
  /// parent would not see the change.
  std::optional<int64_t> take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

  /// Returns the offset of the `bytes` bytes at `memory`, or nothing if they are not in the arena.
  std::optional<int64_t> offset_of(const void* memory, size_t bytes) const;
  char* at(int64_t offset) const { return segment_.data() + offset; }

 private:
  SharedSegment segment_;
  HomeProcess home_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // free ranges of whole pages, never adjacent: offset -> bytes
};

/// Returns the size in bytes of each of `world_size` arenas, within the system's limits for a process.
size_t arena_bytes(int world_size);
/// Returns the size in bytes of the segment for blocks that ranks share: room for each of `world_size` ranks
/// to reserve in, as large as an arena where the system's limits for a file allow that.
size_t blocks_bytes(int world_size);

}  // namespace zerorun
