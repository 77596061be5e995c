// Blocks of a rank's arena for copies of input that other ranks read. Freed blocks are kept for reuse. Owned
// by the rank's transfers. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "comm/shared_memory/shared_arena.h"

namespace zerorun {

class ArenaScratch {
 public:
  struct Block {
    int64_t offset;
    int64_t bytes;
  };

  /// `arena` outlives this object.
  explicit ArenaScratch(SharedArena& arena) : arena_(arena) {}

  /// Throws Error if the arena has no room.
  Block take(int64_t bytes);
  void give_back(Block block);
  /// The total size of the blocks, free or in use.
  int64_t bytes() const;

 private:
  SharedArena& arena_;
  mutable std::mutex mutex_;
  std::vector<Block> free_;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
