// The memory that one rank lends to the others of its host: one segment, which all map whole when they
// connect, so that a place in it is known by its offset and nothing has to be agreed upon when memory is
// taken or given back. It is as large as the machine's memory and costs what is in use. Owned by the
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

  /// A zero-filled 1-D tensor; none where there is no room.
  std::optional<at::Tensor> allocate(int64_t numel, at::ScalarType dtype);

  /// The offset of a zero-filled place for `bytes`, and its way back. A forked child gets none and gives none
  /// back: its parent does not know of it.
  std::optional<int64_t> take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

  /// Where the `bytes` at `memory` lie; none: not in here.
  std::optional<int64_t> offset_of(const void* memory, size_t bytes) const;
  char* at(int64_t offset) const { return segment_.data() + offset; }

 private:
  SharedSegment segment_;
  HomeProcess home_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes, in whole pages; neighbours are one
};

/// The size of an arena for one of `world_size` ranks, within what the system allows a process.
size_t arena_bytes(int world_size);

}  // namespace zerorun
