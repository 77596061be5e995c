#include "comm/shared_memory/arena_scratch.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace zerorun {

// Takes the smallest free block that is large enough. If there is none, frees the largest free block and
// allocates a new one, so the arena's count of blocks never exceeds the largest count that was in use at the
// same time.
ArenaScratch::Block ArenaScratch::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
  }
  if (best != free_.end()) {
    const Block block = *best;
    free_.erase(best);
    return block;
  }
  const auto largest = std::ranges::max_element(free_, {}, &Block::bytes);
  if (largest != free_.end()) {
    arena_.give_back(largest->offset, largest->bytes);
    bytes_ -= largest->bytes;
    free_.erase(largest);
  }
  const auto offset = arena_.take(bytes);
  if (!offset) throw Error("the memory that ranks share has no room for " + std::to_string(bytes) + " bytes");
  bytes_ += bytes;
  return {*offset, bytes};
}

void ArenaScratch::give_back(Block block) {
  std::lock_guard lock(mutex_);
  free_.push_back(block);
}

int64_t ArenaScratch::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace zerorun
