#include "comm/shared_memory/shared_arena.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace zerorun {
namespace {

int64_t in_pages(int64_t bytes) {
  return (bytes + kArenaPage - 1) / kArenaPage * kArenaPage;
}

size_t limit_of(int resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : SIZE_MAX;
}

}  // namespace

// A process maps the arenas of all ranks, and as much again for blocks. Together they must stay well below
// its 128 TiB of address space and within RLIMIT_AS. Each arena is a file, and growing a file beyond
// RLIMIT_FSIZE would kill the process.
size_t arena_bytes(int world_size) {
  constexpr size_t kAddresses = size_t{16} << 40;
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const size_t most = std::min({memory, kAddresses / world_size, limit_of(RLIMIT_FSIZE),
                                limit_of(RLIMIT_AS) / 4 / static_cast<size_t>(world_size)});
  return most / kArenaPage * kArenaPage;
}

size_t blocks_bytes(int world_size) {
  const auto ranks = static_cast<size_t>(world_size);
  const size_t room = std::min(arena_bytes(world_size), limit_of(RLIMIT_FSIZE) / ranks);
  return room / kArenaPage * kArenaPage * ranks;
}

SharedArena::SharedArena(SharedSegment segment) : segment_(std::move(segment)) {
  free_.emplace(0, static_cast<int64_t>(segment_.bytes()));
}

SharedArena::SharedArena(SharedSegment segment, int64_t offset, int64_t bytes)
    : segment_(std::move(segment)) {
  free_.emplace(offset, bytes);
}

std::optional<at::Tensor> SharedArena::allocate(int64_t numel, at::ScalarType dtype) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const std::optional<int64_t> offset = take(bytes);
  if (!offset) return std::nullopt;
  return at::from_blob(
      at(*offset), {numel},
      [self = shared_from_this(), offset = *offset, bytes](void*) { self->give_back(offset, bytes); },
      at::TensorOptions().dtype(dtype));
}

// First fit: long-lived tensors, which are allocated early, stay at the beginning of the arena.
std::optional<int64_t> SharedArena::take(int64_t bytes) {
  const int64_t wanted = std::max(in_pages(bytes), kArenaPage);
  if (!home_.is_current()) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto place = std::ranges::find_if(free_, [&](const auto& entry) { return entry.second >= wanted; });
  if (place == free_.end()) return std::nullopt;
  const auto [offset, size] = *place;
  free_.erase(place);
  if (size > wanted) free_.emplace(offset + wanted, size - wanted);
  return offset;
}

void SharedArena::give_back(int64_t offset, int64_t bytes) {
  if (!home_.is_current()) return;
  int64_t size = std::max(in_pages(bytes), kArenaPage);
  // MADV_REMOVE frees the pages for all processes that map them. The pages read as zeros when they are used
  // again.
  if (madvise(at(offset), static_cast<size_t>(size), MADV_REMOVE) != 0) std::memset(at(offset), 0, size);
  std::lock_guard lock(mutex_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

std::optional<int64_t> SharedArena::offset_of(const void* memory, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(segment_.data());
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address < begin || address + bytes > begin + segment_.bytes()) return std::nullopt;
  return static_cast<int64_t>(address - begin);
}

}  // namespace zerorun
