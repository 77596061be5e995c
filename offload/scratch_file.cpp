#include "offload/scratch_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/memory_report.h"
#include "checkpoint/checksums.h"
#include "checkpoint/state_header.h"

namespace zerorun {
namespace {

// Transfers at a time. There are more buffers than kBuffers only while so many are lent.
constexpr int kMostInFlight = 2 * ScratchFile::kBuffers;

int64_t whole_pages(int64_t bytes) {
  return checkpoint::rounded_up(bytes, checkpoint::kPageBytes);
}

// XXH3 of each MiB, joined.
uint64_t checksum_of(const std::byte* memory, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes; at += checkpoint::kChecksumBlock) {
    const auto count = static_cast<size_t>(std::min(checkpoint::kChecksumBlock, bytes - at));
    sum = 31 * sum + checkpoint::checksum_of({memory + at, count});
  }
  return sum;
}

}  // namespace

void ScratchFile::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
}

ScratchFile::ScratchFile(checkpoint::FileSystem& files, ScratchFileOptions options)
    : files_(&files), options_(std::move(options)) {
  if (options_.sizes_only) return;
  file_.emplace(checkpoint::OpenFile::create_nameless(files, options_.folder));
  transfers_ = options_.open(files, kMostInFlight, options_.threads);
}

int64_t ScratchFile::put(int64_t bytes, const std::function<void(std::byte*)>& fill, std::string label) {
  check_process();
  std::unique_lock lock(mutex_);
  check_not_failed();
  const int64_t room = whole_pages(bytes);
  const int index = take_buffer(room);
  Block block{.label = std::move(label), .offset = 0, .bytes = bytes};
  if (!options_.sizes_only) {
    std::byte* memory = buffers_[static_cast<size_t>(index)].memory.get();
    buffers_[static_cast<size_t>(index)].use = Use::lent;
    lock.unlock();  // `fill` may destroy tensors, which drop blocks
    try {
      fill(memory);
    } catch (...) {
      give_back(memory);
      throw;
    }
    block.checksum = checksum_of(memory, bytes);
    lock.lock();
  }
  block.offset = take_place(room);
  const int64_t number = next_block_++;
  blocks_.emplace(number, std::move(block));
  if (!options_.sizes_only) start(index, number, /*writes=*/true);
  return number;
}

std::byte* ScratchFile::get(int64_t number) {
  check_process();
  const std::lock_guard lock(mutex_);
  check_not_failed();
  if (options_.sizes_only) return nullptr;
  Block& block = blocks_.at(number);
  const auto is_here = [&] {
    // A write from one of the other buffers leaves the block in the file alone.
    if (block.buffer < 0) start(take_buffer(whole_pages(block.bytes)), number, /*writes=*/false);
    return buffers_[static_cast<size_t>(block.buffer)].use == Use::ready;
  };
  if (!is_here()) {
    const TimelineSpan span(TimelineName::wait_for_files, static_cast<int32_t>(number));
    while (!is_here()) finish_one();
  }
  const auto index = static_cast<size_t>(block.buffer);
  buffers_[index].use = Use::lent;
  block.buffer = -1;
  ++block.lent;
  read_ahead(number);
  return buffers_[index].memory.get();
}

void ScratchFile::give_back(const std::byte* memory) noexcept {
  if (!home_.is_current()) return;
  const std::lock_guard lock(mutex_);
  const auto lent =
      std::ranges::find(buffers_, memory, [](const Buffer& buffer) { return buffer.memory.get(); });
  if (lent == buffers_.end()) return;
  if (const auto block = blocks_.find(lent->block); block != blocks_.end()) --block->second.lent;
  release(*lent);
}

void ScratchFile::drop(int64_t number) noexcept {
  if (!home_.is_current()) return;
  const std::lock_guard lock(mutex_);
  Block& block = blocks_.at(number);
  const Use use = block.buffer < 0 ? Use::free : buffers_[static_cast<size_t>(block.buffer)].use;
  block.is_dropped = use == Use::writing || use == Use::reading;
  if (!block.is_dropped) forget(number);
}

int64_t ScratchFile::buffer_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes;
  return bytes;
}

int64_t ScratchFile::file_bytes() const {
  const std::lock_guard lock(mutex_);
  return file_bytes_;
}

// Before the lock, which a forked child may have got from its parent in a locked state.
void ScratchFile::check_process() const {
  if (home_.is_current()) return;
  throw UserError("a forked child of rank " + std::to_string(options_.rank) +
                  " uses the engine of its parent, with which it shares a file (" + options_.key +
                  "): train only in the parent");
}

void ScratchFile::check_not_failed() const {
  if (!failure_.empty()) throw TrainingError(failure_);
}

void ScratchFile::fail(const Block& block, const std::string& what) {
  failure_ = block.label + " on rank " + std::to_string(options_.rank) + ", in a file of " +
             options_.folder.string() + " (" + options_.key + "), " + what +
             ": training cannot go on; resume from the newest checkpoint";
  throw TrainingError(failure_);
}

// The smallest free place that has room, or one at the end of the file.
int64_t ScratchFile::take_place(int64_t bytes) {
  auto best = free_places_.end();
  for (auto place = free_places_.begin(); place != free_places_.end(); ++place) {
    if (place->second >= bytes && (best == free_places_.end() || place->second < best->second)) best = place;
  }
  if (best == free_places_.end()) {
    const int64_t offset = std::exchange(end_, end_ + bytes);
    file_bytes_ = std::max(file_bytes_, end_);
    return offset;
  }
  const auto [offset, room] = *best;
  if (room > bytes) free_places_.emplace(offset + bytes, room - bytes);
  free_places_.erase(best);
  return offset;
}

void ScratchFile::give_back_place(int64_t offset, int64_t bytes) {
  if (const auto after = free_places_.find(offset + bytes); after != free_places_.end()) {
    bytes += after->second;
    free_places_.erase(after);
  }
  const auto next = free_places_.lower_bound(offset);
  if (next != free_places_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_places_.erase(before);
    }
  }
  if (offset + bytes == end_) {
    end_ = offset;
  } else {
    free_places_.emplace(offset, bytes);
  }
}

void ScratchFile::resize(Buffer& buffer, int64_t bytes) const {
  buffer.memory.reset();
  buffer.bytes = 0;
  const auto size = static_cast<size_t>(bytes);
  const AllocatingFor use(MemoryUse::buckets, bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, size, MADV_DONTFORK);  // forked children must not share these pages
  buffer.memory = {static_cast<std::byte*>(memory), Unmap{size}};
  buffer.bytes = bytes;
}

// Of the first kBuffers buffers those of this use: one of `bytes` bytes or else another one; of those with
// blocks the one whose block was put first, as it comes back last. -1: none.
int ScratchFile::find(Use use, int64_t bytes) const {
  int found = -1;
  for (int index = 0; index < std::min(static_cast<int>(buffers_.size()), kBuffers); ++index) {
    const Buffer& buffer = buffers_[static_cast<size_t>(index)];
    if (buffer.use != use) continue;
    const auto order = [&](const Buffer& each) { return std::pair(each.bytes != bytes, each.block); };
    if (found < 0 || order(buffer) < order(buffers_[static_cast<size_t>(found)])) found = index;
  }
  return found;
}

// A buffer that holds nothing, or a new one. -1: there is none.
int ScratchFile::take_spare_buffer(int64_t bytes) {
  int index = find(Use::free, bytes);
  const bool fits = index >= 0 && buffers_[static_cast<size_t>(index)].bytes == bytes;
  if (!fits && buffers_.size() < kBuffers) {
    index = static_cast<int>(buffers_.size());
    buffers_.push_back({.memory = nullptr, .bytes = 0});
  }
  if (index < 0) return index;
  Buffer& buffer = buffers_[static_cast<size_t>(index)];
  if (buffer.bytes != bytes) resize(buffer, bytes);
  return index;
}

int ScratchFile::take_buffer(int64_t bytes) {
  if (options_.sizes_only) {  // every buffer is free, and all are in use at some time
    if (buffers_.size() < kBuffers) buffers_.push_back({.memory = nullptr, .bytes = 0});
    Buffer& smallest = *std::ranges::min_element(buffers_, {}, &Buffer::bytes);
    smallest.bytes = std::max(smallest.bytes, bytes);
    return 0;
  }
  while (const auto done = transfers_->next(std::chrono::milliseconds(0))) finish(*done);
  for (;;) {
    if (const int spare = take_spare_buffer(bytes); spare >= 0) return spare;
    if (const int index = find(Use::ready, bytes); index >= 0) {
      Buffer& buffer = buffers_[static_cast<size_t>(index)];
      blocks_.at(buffer.block).buffer = -1;
      release(buffer);
    } else if (find(Use::writing, bytes) >= 0 || find(Use::reading, bytes) >= 0) {
      finish_one();
    } else {
      break;  // all are lent
    }
  }
  auto other = std::find_if(buffers_.begin() + kBuffers, buffers_.end(),
                            [](const Buffer& buffer) { return buffer.use == Use::free; });
  if (other == buffers_.end()) other = buffers_.insert(other, Buffer{.memory = nullptr, .bytes = 0});
  resize(*other, bytes);
  return static_cast<int>(other - buffers_.begin());
}

void ScratchFile::release(Buffer& buffer) {
  buffer.use = Use::free;
  buffer.block = -1;
  if (&buffer - buffers_.data() < kBuffers) return;
  buffer.memory.reset();
  buffer.bytes = 0;
}

void ScratchFile::start(int index, int64_t number, bool writes) {
  Buffer& buffer = buffers_[static_cast<size_t>(index)];
  Block& block = blocks_.at(number);
  block.buffer = index;
  buffer.block = number;
  buffer.use = Use::lent;  // until it begins
  while (in_flight_ == kMostInFlight) finish_one();
  buffer.use = writes ? Use::writing : Use::reading;
  if (timeline::is_on()) {
    buffer.recorded.emplace(writes ? TimelineName::write_chunk : TimelineName::read_chunk,
                            static_cast<int32_t>(number), buffer.bytes);
  }
  buffer.transfer = {.transfer = {.file = file_->number(),
                                  .writes = writes,
                                  .bytes = {buffer.memory.get(), static_cast<size_t>(buffer.bytes)},
                                  .offset = block.offset}};
  transfers_->start(buffer.transfer.transfer, index);
  ++in_flight_;
}

// Begins to read the last block before this one that is not lent, if it is in no buffer and one is free.
void ScratchFile::read_ahead(int64_t number) {
  auto place = blocks_.find(number);
  do {
    if (place == blocks_.begin()) return;
    --place;
  } while (place->second.lent > 0);
  const auto& [before, block] = *place;
  if (block.buffer >= 0 || block.is_dropped) return;
  const int spare = take_spare_buffer(whole_pages(block.bytes));
  if (spare >= 0) start(spare, before, /*writes=*/false);
}

void ScratchFile::finish_one() {
  const auto done = transfers_->next(options_.timeout);
  if (done) return finish(*done);
  const auto busy = std::ranges::find_if(buffers_, [](const Buffer& buffer) {
    return buffer.use == Use::writing || buffer.use == Use::reading;
  });
  ZR_CHECK(busy != buffers_.end(), "no block is read or written");
  fail(blocks_.at(busy->block),
       "did not come or go within " + std::to_string(options_.timeout.count() / 1000) + " s");
}

void ScratchFile::finish(const TransferDone& done) {
  Buffer& buffer = buffers_[static_cast<size_t>(done.tag)];
  Block& block = blocks_.at(buffer.block);
  const TransferState state = carry_on(*files_, *transfers_, buffer.transfer, done);
  if (!state.failure.empty()) fail(block, state.failure);
  if (!state.is_over) return;
  --in_flight_;
  if (buffer.recorded) buffer.recorded->finish();
  buffer.recorded.reset();
  const bool was_read = buffer.use == Use::reading;
  buffer.use = Use::ready;
  if (block.is_dropped) return forget(buffer.block);
  if (was_read && checksum_of(buffer.memory.get(), block.bytes) != block.checksum)
    fail(block, "is not what was written (another checksum)");
  if (was_read || done.tag < kBuffers) return;
  block.buffer = -1;
  release(buffer);
}

void ScratchFile::forget(int64_t number) {
  const auto found = blocks_.find(number);
  const Block& block = found->second;
  if (block.buffer >= 0) release(buffers_[static_cast<size_t>(block.buffer)]);
  try {
    give_back_place(block.offset, whole_pages(block.bytes));
  } catch (const std::bad_alloc&) {  // then nothing uses this place again
  }
  blocks_.erase(found);
}

}  // namespace zerorun
