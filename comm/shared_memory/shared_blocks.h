// Memory to which several ranks of a host write: blocks of one segment, which every rank maps as a whole.
// Each rank reserves blocks in a part of the segment of its own, so that the first rank of any group can do
// it. When every rank of the group has released a block, its pages return to the system and it is free again.
// Owned by the communicators and by every tensor in a block. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/process.h"
#include "comm/shared_memory/shared_arena.h"

namespace zerorun {

class SharedBlocks : public std::enable_shared_from_this<SharedBlocks> {
 public:
  /// The descriptor of `segment` must be open.
  SharedBlocks(SharedSegment segment, int rank, int world_size);

  /// Reserves a zero-filled block that `users` ranks will open(), and returns its offset, or nothing if there
  /// is no room.
  std::optional<int64_t> reserve(int64_t bytes, int users);
  /// Returns a 1-D tensor on a reserved block. Each rank opens the block once, and releases it when the
  /// tensor is destroyed. A forked child releases nothing. `group`: identifies the ranks that open it.
  at::Tensor open(int64_t offset, int64_t numel, at::ScalarType dtype, uint64_t group);
  /// Makes this rank's later writes to `tensor`, which is from open(), private to this rank. Pages that this
  /// rank has not written stay shared, so it would see other ranks' writes to them. Therefore, once any rank
  /// has called make_own(), each other rank must call make_own() before it writes to the block.
  void make_own(const at::Tensor& tensor);
  /// Returns to the system the pages that lie wholly in `part`, which is a part of a tensor from open().
  void give_back_pages(const at::Tensor& part) const;

  /// Whether the memory is in a block that the ranks of `group` have opened, and this rank's writes to it are
  /// visible to them.
  bool contains(const void* memory, size_t bytes, uint64_t group) const;

 private:
  struct Block {
    int64_t offset;
    int64_t bytes;  // whole pages; the page after them holds the number of users plus 1, or 0 if free
  };

  struct Opened {
    int64_t bytes;
    uint64_t group;
    bool is_own;  // make_own() was called
  };

  std::atomic<int>& users(const Block& block) const;
  bool map(const Block& block, int sharing) const;
  void let_go(const Block& block);

  HomeProcess home_;
  SharedArena arena_;  // this rank allocates only in its own part of the segment
  mutable std::mutex mutex_;
  std::vector<Block> reserved_;       // by this rank
  std::map<int64_t, Opened> opened_;  // by offset
};

}  // namespace zerorun
