// Memory that all ranks of a host write to: blocks of one segment, which every rank maps whole. Rank 0
// allocates the blocks; a block is free again, and its pages return to the system, when each rank has
// released it. Owned by the communicator and by every tensor in it; any thread, but one at a time for
// reserve().
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
#include "comm/shared_arena.h"

namespace zerorun {

class SharedBlocks : public std::enable_shared_from_this<SharedBlocks> {
 public:
  /// `segment` has its descriptor open.
  explicit SharedBlocks(SharedSegment segment) : arena_(std::move(segment)) {}

  /// On rank 0: the offset of a zero-filled block that `users` ranks are going to open(); nothing if there
  /// is no room.
  std::optional<int64_t> reserve(int64_t bytes, int users);
  /// A 1-D tensor on a reserved block. Each rank opens it once and releases it with the tensor; forked
  /// children of the rank release nothing.
  at::Tensor open(int64_t offset, int64_t numel, at::ScalarType dtype);
  /// Makes this rank's later writes to the tensor, from open(), private to it. Unwritten pages stay shared.
  /// No rank may write to the block any more except after the same call.
  void make_own(const at::Tensor& tensor);
  /// Returns the pages that lie wholly in `part`, of a tensor from open(), to the system.
  void give_back_pages(const at::Tensor& part) const;

  /// Whether all ranks see writes to this memory.
  bool contains(const void* memory, size_t bytes) const;

 private:
  struct Block {
    int64_t offset;
    int64_t bytes;  // in whole pages; behind them is one with the number of users, and 1 until they are freed
  };

  std::atomic<int>& users(const Block& block) const;
  bool map(const Block& block, int sharing) const;
  void let_go(const Block& block);

  HomeProcess home_;
  SharedArena arena_;  // its free places are known on rank 0
  std::vector<Block> reserved_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> own_;  // offset -> bytes of blocks that make_own() was called for
};

}  // namespace zerorun
