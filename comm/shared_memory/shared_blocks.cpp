#include "comm/shared_memory/shared_blocks.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "base/error.h"

namespace zerorun {
namespace {

int64_t in_whole_pages(int64_t bytes) {
  return std::max<int64_t>((bytes + kArenaPage - 1) / kArenaPage, 1) * kArenaPage;
}

}  // namespace

SharedBlocks::SharedBlocks(SharedSegment segment, int rank, int world_size)
    : arena_([&] {
        const int64_t part = static_cast<int64_t>(segment.bytes()) / world_size / kArenaPage * kArenaPage;
        return SharedArena(std::move(segment), rank * part, part);
      }()) {}

std::optional<int64_t> SharedBlocks::reserve(int64_t bytes, int users_to_come) {
  std::lock_guard lock(mutex_);
  std::erase_if(reserved_, [&](const Block& block) {
    const bool free = users(block).load() == 0;
    if (free) arena_.give_back(block.offset, block.bytes + kArenaPage);
    return free;
  });
  const int64_t size = in_whole_pages(bytes);
  const std::optional<int64_t> offset = arena_.take(size + kArenaPage);
  if (!offset) return std::nullopt;
  reserved_.push_back({.offset = *offset, .bytes = size});
  users(reserved_.back()).store(users_to_come + 1);
  return offset;
}

at::Tensor SharedBlocks::open(int64_t offset, int64_t numel, at::ScalarType dtype, uint64_t group) {
  const Block block{.offset = offset,
                    .bytes = in_whole_pages(numel * static_cast<int64_t>(c10::elementSize(dtype)))};
  {
    std::lock_guard lock(mutex_);
    opened_[offset] = {.bytes = block.bytes, .group = group, .is_own = false};
  }
  return at::from_blob(
      arena_.at(offset), {numel}, [self = shared_from_this(), block](void*) { self->let_go(block); },
      at::TensorOptions().dtype(dtype));
}

void SharedBlocks::make_own(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const std::optional<int64_t> offset = arena_.offset_of(tensor.const_data_ptr(), tensor.nbytes());
  ZR_CHECK(offset.has_value(), "a tensor elsewhere");
  const Block block{.offset = *offset, .bytes = in_whole_pages(static_cast<int64_t>(tensor.nbytes()))};
  std::lock_guard lock(mutex_);
  if (!map(block, MAP_PRIVATE)) {
    throw Error("cannot map memory of " + std::to_string(block.bytes) +
                " bytes (mmap): " + std::strerror(errno));
  }
  opened_.at(block.offset).is_own = true;
}

void SharedBlocks::give_back_pages(const at::Tensor& part) const {
  if (part.numel() == 0) return;
  const std::optional<int64_t> offset = arena_.offset_of(part.const_data_ptr(), part.nbytes());
  ZR_CHECK(offset.has_value(), "a tensor elsewhere");
  const int64_t begin = (*offset + kArenaPage - 1) / kArenaPage * kArenaPage;
  const int64_t end = (*offset + static_cast<int64_t>(part.nbytes())) / kArenaPage * kArenaPage;
  if (begin < end) madvise(arena_.at(begin), static_cast<size_t>(end - begin), MADV_REMOVE);
}

bool SharedBlocks::contains(const void* memory, size_t bytes, uint64_t group) const {
  const std::optional<int64_t> offset = arena_.offset_of(memory, bytes);
  if (!offset) return false;
  std::lock_guard lock(mutex_);
  const auto next = opened_.upper_bound(*offset);
  if (next == opened_.begin()) return false;
  const auto& [begin, block] = *std::prev(next);
  return begin + block.bytes > *offset && block.group == group && !block.is_own;
}

std::atomic<int>& SharedBlocks::users(const Block& block) const {
  return *reinterpret_cast<std::atomic<int>*>(arena_.at(block.offset + block.bytes));
}

// Maps the block at another address first and then moves the mapping. A failed mmap() at the final address
// would leave nothing mapped there.
bool SharedBlocks::map(const Block& block, int sharing) const {
  void* place = arena_.at(block.offset);
  const auto size = static_cast<size_t>(block.bytes);
  void* elsewhere = mmap(nullptr, size, PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE,
                         arena_.segment().descriptor(), block.offset);
  if (elsewhere == MAP_FAILED) return false;
  if (mremap(elsewhere, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place) {
    munmap(elsewhere, size);
    return false;
  }
  if (sharing == MAP_SHARED) madvise(place, size, MADV_DONTDUMP);
  return true;
}

// After make_own(), this rank must first map the block as shared again. If that fails, the block stays
// reserved for ever, because other ranks would not see this rank's writes to a reused block.
void SharedBlocks::let_go(const Block& block) {
  if (!home_.is_current()) return;
  {
    std::lock_guard lock(mutex_);
    const auto opened = opened_.find(block.offset);
    const bool is_own = opened->second.is_own;
    opened_.erase(opened);
    if (is_own && !map(block, MAP_SHARED)) return;
  }
  if (users(block).fetch_sub(1) > 2) return;
  void* const place = arena_.at(block.offset);
  const auto size = static_cast<size_t>(block.bytes);
  // madvise() fails if the memory is locked (mlockall).
  if (madvise(place, size, MADV_REMOVE) != 0) std::memset(place, 0, size);
  users(block).store(0);  // from now on reserve() may reuse the block
}

}  // namespace zerorun
