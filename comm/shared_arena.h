// The memory that one rank lends to the other ranks of its host: one segment, which all ranks map whole
// when they connect. So an offset identifies a place in it, and ranks need no agreement to allocate or
// free. The segment is as large as the machine's memory but takes only the memory in use. Owned by the
// communicator and by every tensor in it; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/process.h"
#include "comm/shared_segment.h"

namespace zerorun {

class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  explicit SharedArena(SharedSegment segment);

  SharedSegment& segment() { return segment_; }
  const SharedSegment& segment() const { return segment_; }

  /// A zero-filled 1-D tensor; nothing if there is no room.
  std::optional<at::Tensor> allocate(int64_t numel, at::ScalarType dtype);

  /// Allocates a zero-filled place for `bytes` and returns its offset; the other frees it. A forked child
  /// can do neither, since its parent would not know.
  std::optional<int64_t> take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

  /// The offset of the `bytes` at `memory`; nothing if they are not in the arena.
  std::optional<int64_t> offset_of(const void* memory, size_t bytes) const;
  char* at(int64_t offset) const { return segment_.data() + offset; }

 private:
  SharedSegment segment_;
  HomeProcess home_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes, in whole pages; neighbours are one
};

/// The size of an arena for one of `world_size` ranks, within the system's limits for a process.
size_t arena_bytes(int world_size);

}  // namespace zerorun
