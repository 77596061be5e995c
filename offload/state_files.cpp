#include "offload/state_files.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/memory_report.h"
#include "checkpoint/checksums.h"

namespace zerorun {

void StateFiles::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
}

StateFiles::StateFiles(checkpoint::FileSystem& files, StateFilesOptions options,
                       std::vector<SliceContents> slices)
    : files_(&files), options_(std::move(options)) {
  for (SliceContents& contents : slices) {
    SlotLayout layout = make_slot_layout(contents, options_.chunk_bytes, options_.alignment);
    const int first_chunk = chunks();
    const int slice = this->slices();
    for (const Chunk& chunk : layout.chunks) {
      bytes_of_a_buffer_ = std::max(bytes_of_a_buffer_, chunk.bytes);
      chunks_.push_back({.slice = slice, .index = chunks() - first_chunk});
    }
    Slice& added = slices_.emplace_back(Slice{.contents = std::move(contents),
                                              .layout = std::move(layout),
                                              .first_chunk = first_chunk,
                                              .slots = {}});
    if (options_.sizes_only) continue;
    const auto blocks = static_cast<size_t>((added.layout.bytes + checkpoint::kChecksumBlock - 1) /
                                            checkpoint::kChecksumBlock);
    for (Slot& slot : added.slots)
      slot = {.file = make_file(added.layout), .checksums = std::vector<uint64_t>(blocks)};
  }
  const int count = std::min(std::max(options_.buffers, kFewestBuffers), std::max(chunks(), 1));
  if (options_.sizes_only) {
    buffers_.assign(static_cast<size_t>(count), {.memory = nullptr});
    return;
  }
  const int64_t total = std::max(count * bytes_of_a_buffer_, checkpoint::kPageBytes);
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const AllocatingFor use(MemoryUse::buckets, total);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = {static_cast<std::byte*>(memory), Unmap{static_cast<size_t>(total)}};
  ::madvise(memory, static_cast<size_t>(total), MADV_DONTFORK);  // forked children must not share these pages
  if (options_.pin) pinned_ = options_.pin(memory, static_cast<size_t>(total));
  const int64_t requests = (bytes_of_a_buffer_ + options_.request_bytes - 1) / options_.request_bytes;
  for (int i = 0; i < count; ++i) buffers_.push_back({.memory = memory_.get() + i * bytes_of_a_buffer_});
  requests_.resize(static_cast<size_t>(count * requests));
  for (int i = 0; i < static_cast<int>(requests_.size()); ++i) free_requests_.push_back(i);
  plan_.reserve(chunks_.size());
  transfers_ = options_.open(files, std::max(static_cast<int>(requests_.size()), 1), options_.threads);
}

StateFiles::~StateFiles() = default;

std::shared_ptr<checkpoint::OpenFile> StateFiles::make_file(const SlotLayout& layout) const {
  auto file =
      std::make_shared<checkpoint::OpenFile>(checkpoint::OpenFile::create_nameless(*files_, options_.folder));
  file->allocate(layout.bytes);
  return file;
}

int64_t StateFiles::buffer_bytes() const {
  return static_cast<int64_t>(buffers_.size()) * bytes_of_a_buffer_;
}

int64_t StateFiles::file_bytes() const {
  int64_t bytes = 0;
  for (const Slice& slice : slices_) bytes += 2 * slice.layout.bytes;
  return bytes;
}

const Chunk& StateFiles::place(int chunk) const {
  const ChunkState& state = chunks_[chunk];
  return slices_[state.slice].layout.chunks[state.index];
}

std::span<std::byte> StateFiles::bytes_of(int buffer) const {
  const Buffer& used = buffers_[buffer];
  return {used.memory, static_cast<size_t>(place(used.chunk).bytes)};
}

std::string StateFiles::label(int chunk) const {
  return "the offloaded state of " + slices_[chunks_[chunk].slice].contents.label + " on rank " +
         std::to_string(options_.rank) + ", in a file of " + options_.folder.string() + ",";
}

void StateFiles::fail(int chunk, const std::string& what) {
  failure_ = label(chunk) + " " + what + ": training cannot go on; resume from the newest checkpoint";
  throw TrainingError(failure_);
}

void StateFiles::check_not_failed() const {
  if (!home_.is_current()) {
    throw UserError("a forked child of rank " + std::to_string(options_.rank) +
                    " uses the engine of its parent, whose state is in files that both processes share: "
                    "train only in the parent");
  }
  if (!failure_.empty()) throw TrainingError(failure_);
}

void StateFiles::plan(std::span<const int> chunks) {
  check_not_failed();
  plan_.assign(chunks.begin(), chunks.end());
  opened_of_plan_ = 0;
  read_of_plan_ = 0;
  read_ahead();
}

std::byte* StateFiles::open(int chunk, bool overwrites) {
  check_not_failed();
  if (chunks_[chunk].buffer < 0) load(chunk, take_buffer(), overwrites);
  const int buffer = chunks_[chunk].buffer;
  ++buffers_[buffer].opened;  // before the wait, because an open buffer is never reused
  await(buffer);
  buffers_[buffer].last_opened = ++opens_;
  note_opened(chunk);
  read_ahead();
  return buffers_[buffer].memory;
}

void StateFiles::close(int chunk, bool changed) {
  const int buffer = chunks_[chunk].buffer;
  ZR_CHECK(buffer >= 0 && buffers_[buffer].opened > 0, "closed more often than opened");
  Buffer& used = buffers_[buffer];
  used.is_changed = used.is_changed || changed;
  if (--used.opened > 0 || !failure_.empty() || !home_.is_current()) return;
  if (used.is_changed) write(buffer);
  read_ahead();
}

void StateFiles::finish_generation() {
  check_not_failed();
  for (Slice& slice : slices_) {
    if (slice.changed == 0) continue;
    for (int index = 0; index < static_cast<int>(slice.layout.chunks.size()); ++index) {
      const int chunk = slice.first_chunk + index;
      if (chunks_[chunk].is_in_next) continue;
      open(chunk);
      close(chunk, true);
    }
  }
  for (int buffer = 0; buffer < static_cast<int>(buffers_.size()); ++buffer) {
    if (buffers_[buffer].use == Use::writing) await(buffer);
  }
  for (Slice& slice : slices_) {
    if (slice.changed == 0) continue;
    slice.complete = slice.next();
    ++slice.generation;
    slice.changed = 0;
    for (size_t index = 0; index < slice.layout.chunks.size(); ++index)
      chunks_[slice.first_chunk + static_cast<int>(index)].is_in_next = false;
  }
}

LentSlot StateFiles::lend(int number) {
  check_not_failed();
  Slice& slice = slices_[number];
  ZR_CHECK(slice.changed == 0, "lent in the middle of a generation");
  if (slice.complete < 0) {
    open(slice.first_chunk);
    close(slice.first_chunk, true);
    finish_generation();
  }
  Slot& slot = slice.slots[slice.complete];
  if (!slot.replacement) slot.replacement = make_file(slice.layout);
  slot.readers->fetch_add(1, std::memory_order_relaxed);
  // This memory_order_release pairs with the acquire in write(). So when write() sees no readers, it also
  // sees whether a reader has given the file a name.
  auto end = [file = slot.file, readers = slot.readers](checkpoint::OpenFile*) {
    readers->fetch_sub(1, std::memory_order_release);
  };
  return {.file = std::shared_ptr<checkpoint::OpenFile>(slot.file.get(), std::move(end)),
          .facts = {.bytes = slice.layout.bytes, .checksums = slot.checksums, .ranges = slice.layout.ranges}};
}

// Writes the initial content of a chunk: zeros, and the header if it is the first chunk.
void StateFiles::fill(int chunk, std::byte* memory) const {
  const ChunkState& state = chunks_[chunk];
  const Slice& slice = slices_[state.slice];
  const Chunk& at = place(chunk);
  std::memset(memory, 0, static_cast<size_t>(at.bytes));
  if (state.index == 0) std::ranges::copy(std::as_bytes(std::span(slice.layout.header)), memory);
}

// Advances the plan beyond `chunk`. Chunks that come before it in the plan are no longer read ahead.
void StateFiles::note_opened(int chunk) {
  const auto next = plan_.begin() + static_cast<std::ptrdiff_t>(opened_of_plan_);
  const auto end =
      next + static_cast<std::ptrdiff_t>(std::min(plan_.size() - opened_of_plan_, buffers_.size()));
  const auto found = std::find(next, end, chunk);
  if (found != end) opened_of_plan_ = static_cast<size_t>(found - plan_.begin()) + 1;
}

// Whether the plan will open `chunk` soon. If so, its buffer should not be given to a chunk that is opened
// later.
bool StateFiles::is_planned(int chunk) const {
  const size_t end = std::min(plan_.size(), opened_of_plan_ + 2 * buffers_.size());
  for (size_t i = opened_of_plan_; i < end; ++i) {
    if (plan_[i] == chunk) return true;
  }
  return false;
}

// Returns the least recently opened buffer that is not in use and has nothing left to write; -1 if there is
// none.
int StateFiles::find_buffer(bool only_unplanned) const {
  int found = -1;
  for (int i = 0; i < static_cast<int>(buffers_.size()); ++i) {
    const Buffer& buffer = buffers_[i];
    if (buffer.use == Use::none) return i;
    if (buffer.use != Use::ready || buffer.opened > 0) continue;
    if (only_unplanned && is_planned(buffer.chunk)) continue;
    if (found < 0 || buffer.last_opened < buffers_[found].last_opened) found = i;
  }
  return found;
}

int StateFiles::take_buffer() {
  for (;;) {
    int found = find_buffer(/*only_unplanned=*/true);
    if (found < 0) found = find_buffer(/*only_unplanned=*/false);
    if (found >= 0) return found;
    finish_one(-1, std::chrono::steady_clock::now() + options_.timeout);
  }
}

void StateFiles::load(int chunk, int number, bool overwrites) {
  Buffer& buffer = buffers_[number];
  ZR_CHECK(!buffer.is_changed, "a buffer with what is in no file is to be used again");
  ChunkState& state = chunks_[chunk];
  if (buffer.chunk >= 0) chunks_[buffer.chunk].buffer = -1;
  buffer.chunk = chunk;
  buffer.last_opened = opens_;
  state.buffer = number;
  Slice& slice = slices_[state.slice];
  const int slot = state.is_in_next ? slice.next() : slice.complete;
  if (slot < 0 || overwrites) {
    fill(chunk, buffer.memory);
    buffer.use = Use::ready;
    return;
  }
  buffer.use = Use::reading;
  start(number, *slice.slots[slot].file, /*writes=*/false);
}

void StateFiles::write(int number) {
  Buffer& buffer = buffers_[number];
  ChunkState& state = chunks_[buffer.chunk];
  Slice& slice = slices_[state.slice];
  Slot& slot = slice.slots[slice.next()];
  if (slot.replacement) {
    const bool is_read = slot.readers->load(std::memory_order_acquire) > 0;
    if (is_read || slot.file->is_linked()) {
      slot.file = slot.replacement;
      slot.readers = std::make_shared<std::atomic<int>>(0);
    }
    slot.replacement.reset();
  }
  if (state.index == 0) {
    auto* digit = reinterpret_cast<char*>(buffer.memory) + slice.layout.generation_at + kGenerationDigits;
    for (int64_t rest = slice.generation + 1, i = 0; i < kGenerationDigits; ++i, rest /= 10)
      *--digit = static_cast<char>('0' + rest % 10);
  }
  const std::span<std::byte> bytes = bytes_of(number);
  auto block = static_cast<size_t>(place(buffer.chunk).offset / checkpoint::kChecksumBlock);
  for (size_t at = 0; at < bytes.size(); at += checkpoint::kChecksumBlock, ++block)
    slot.checksums[block] = checkpoint::checksum_of(
        bytes.subspan(at, std::min<size_t>(checkpoint::kChecksumBlock, bytes.size() - at)));
  if (!state.is_in_next) ++slice.changed;
  state.is_in_next = true;
  buffer.is_changed = false;
  buffer.use = Use::writing;
  start(number, *slot.file, /*writes=*/true);
}

void StateFiles::start(int number, checkpoint::OpenFile& file, bool writes) {
  const std::span<std::byte> bytes = bytes_of(number);
  const int64_t offset = place(buffers_[number].chunk).offset;
  (writes ? written_bytes_ : read_bytes_) += static_cast<int64_t>(bytes.size());
  if (timeline::is_on()) {
    buffers_[number].recorded.emplace(writes ? TimelineName::write_chunk : TimelineName::read_chunk,
                                      buffers_[number].chunk, static_cast<int64_t>(bytes.size()));
  }
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(options_.request_bytes)) {
    const size_t count = std::min(static_cast<size_t>(options_.request_bytes), bytes.size() - at);
    const int tag = free_requests_.back();
    free_requests_.pop_back();
    requests_[tag] = {.buffer = number,
                      .whole = {.transfer = {.file = file.number(),
                                             .writes = writes,
                                             .bytes = bytes.subspan(at, count),
                                             .offset = offset + static_cast<int64_t>(at)}}};
    ++buffers_[number].requests;
    transfers_->start(requests_[tag].whole.transfer, tag);
  }
}

void StateFiles::read_ahead() {
  while (auto done = transfers_->next(std::chrono::milliseconds(0))) finish(*done);
  read_of_plan_ = std::max(read_of_plan_, opened_of_plan_);
  for (; read_of_plan_ < plan_.size(); ++read_of_plan_) {
    const int chunk = plan_[read_of_plan_];
    if (chunks_[chunk].buffer >= 0) continue;
    const int buffer = find_buffer(/*only_unplanned=*/true);
    if (buffer < 0) return;
    load(chunk, buffer);
  }
}

void StateFiles::await(int buffer) {
  if (buffers_[buffer].use == Use::ready) return;
  const TimelineSpan span(TimelineName::wait_for_files, buffers_[buffer].chunk);
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  while (buffers_[buffer].use != Use::ready) finish_one(buffer, deadline);
}

// Waits for one request and finishes it. `awaited` is the buffer that the caller waits for, or -1 for any
// buffer.
void StateFiles::finish_one(int awaited, std::chrono::steady_clock::time_point deadline) {
  const auto busy = std::ranges::find_if(buffers_, [](const Buffer& buffer) { return buffer.requests > 0; });
  ZR_CHECK(busy != buffers_.end(), "all buffers of offloaded state are in use");
  const auto rest =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  const auto done = transfers_->next(std::max(rest, std::chrono::milliseconds(0)));
  if (done) return finish(*done);
  const int chunk = awaited < 0 ? busy->chunk : buffers_[awaited].chunk;
  fail(chunk, "did not come or go within " + std::to_string(options_.timeout.count() / 1000) + " s");
}

void StateFiles::finish(const TransferDone& done) {
  auto& [number, whole] = requests_[done.tag];
  Buffer& buffer = buffers_[number];
  const TransferState state = carry_on(*files_, *transfers_, whole, done);
  if (!state.failure.empty()) {
    --buffer.requests;
    fail(buffer.chunk, state.failure);
  }
  if (!state.is_over) return;
  free_requests_.push_back(done.tag);
  if (--buffer.requests > 0) return;
  const bool was_read = buffer.use == Use::reading;
  buffer.use = Use::ready;
  if (buffer.recorded) buffer.recorded->finish();
  buffer.recorded.reset();
  if (was_read) check_read(number);
}

void StateFiles::check_read(int number) {
  const int chunk = buffers_[number].chunk;
  const ChunkState& state = chunks_[chunk];
  const Slice& slice = slices_[state.slice];
  const Slot& slot = slice.slots[state.is_in_next ? slice.next() : slice.complete];
  const std::span<std::byte> bytes = bytes_of(number);
  const int64_t offset = place(chunk).offset;
  for (size_t at = 0; at < bytes.size(); at += checkpoint::kChecksumBlock) {
    const auto block = bytes.subspan(at, std::min<size_t>(checkpoint::kChecksumBlock, bytes.size() - at));
    const int64_t begin = offset + static_cast<int64_t>(at);
    if (checkpoint::checksum_of(block) ==
        slot.checksums[static_cast<size_t>(begin / checkpoint::kChecksumBlock)])
      continue;
    fail(chunk, "is not what was written (bytes " + std::to_string(begin) + " to " +
                    std::to_string(begin + static_cast<int64_t>(block.size())) + ", another checksum)");
  }
}

}  // namespace zerorun
