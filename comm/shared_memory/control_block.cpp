#include "comm/shared_memory/control_block.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

using Word = std::atomic<uint32_t>;
using Clock = std::chrono::steady_clock;
static_assert(Word::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "processes share them");

long futex(Word& word, int operation, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

template <size_t kSize>
void store_text(char (&place)[kSize], std::string_view text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::copy_n(text.data(), length, place);
  place[length] = 0;
}

template <size_t kSize>
std::string load_text(const char (&place)[kSize]) {
  return {place, strnlen(place, kSize)};
}

// Tells the processor that this thread waits in a loop, so that a thread that shares the core gets more of
// it.
void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct alignas(64) ControlBlock::Header {
  uint64_t job;  // constant after make()
};

// Every rank writes `bell`. Only the owning rank writes the other fields.
struct alignas(64) ControlBlock::Rank {
  Word bell;
  Word sleepers;
  Word taken;                                 // 1 after a process has claimed this rank
  alignas(64) std::atomic<uint64_t> waiting;  // 0: none; else kind << 56 | (number + 1)
  Word failed;
  Word threaded;
};

struct alignas(64) ControlBlock::Slot {
  std::atomic<uint64_t> posted;    // number + 1 of the last posted collective
  std::atomic<uint64_t> finished;  // number + 1 of the last finished collective
  Posting posting;
  char label[192];
  char reason[256];
};

namespace {

constexpr int kKindShift = 56;

}  // namespace

size_t ControlBlock::bytes(int world_size) {
  return sizeof(Header) +
         static_cast<size_t>(world_size) * (sizeof(Rank) + kCollectiveKinds * kSlots * sizeof(Slot));
}

SharedSegment ControlBlock::make(int world_size, uint64_t job) {
  SharedSegment segment = SharedSegment::create("zerorun control", bytes(world_size));
  reinterpret_cast<Header*>(segment.data())->job = job;
  return segment;
}

ControlBlock::ControlBlock(SharedSegment segment, int rank, int world_size, uint64_t job)
    : segment_(std::move(segment)), rank_(rank), world_size_(world_size) {
  ZR_CHECK(segment_.bytes() == bytes(world_size), "a control block of another size");
  if (header().job != job) throw Error("the control block that rank 0 has created belongs to another job");
  if (rank_part(rank).taken.exchange(1) != 0) {
    throw Error("another process is rank " + std::to_string(rank) + " in the control block");
  }
}

ControlBlock::Header& ControlBlock::header() const {
  return *reinterpret_cast<Header*>(segment_.data());
}

ControlBlock::Rank& ControlBlock::rank_part(int rank) const {
  return reinterpret_cast<Rank*>(segment_.data() + sizeof(Header))[rank];
}

ControlBlock::Slot& ControlBlock::slot(int rank, Numbered which) const {
  auto* slots = reinterpret_cast<Slot*>(reinterpret_cast<char*>(&rank_part(world_size_)));
  const size_t ring = static_cast<size_t>(rank) * kCollectiveKinds + static_cast<size_t>(which.kind);
  return slots[ring * kSlots + which.number % kSlots];
}

// Loads and stores must be sequentially consistent. Then, if several ranks post at the same time, at least
// one of them sees that all ranks have posted, and wakes the ranks that sleep.
void ControlBlock::post(Numbered which, const Posting& posting, std::string_view label,
                        std::string_view reason) {
  Slot& mine = slot(rank_, which);
  mine.posting = posting;
  store_text(mine.label, label);
  store_text(mine.reason, reason);
  mine.posted.store(which.number + 1);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!has_posted(rank, which)) return;
  }
  ring_all();
}

bool ControlBlock::has_posted(int rank, Numbered which) const {
  return slot(rank, which).posted.load() > which.number;
}

const Posting& ControlBlock::posting(int rank, Numbered which) const {
  return slot(rank, which).posting;
}

void ControlBlock::finish(Numbered which) {
  slot(rank_, which).finished.store(which.number + 1);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!has_finished(rank, which)) return;
  }
  ring_all();
}

bool ControlBlock::has_finished(int rank, Numbered which) const {
  return slot(rank, which).finished.load() > which.number;
}

std::string ControlBlock::words(int rank, Numbered which) const {
  const Slot& theirs = slot(rank, which);
  if (theirs.posted.load() != which.number + 1) return "?";
  const std::string reason = load_text(theirs.reason);
  return std::string(name_of(which.kind)) + " of " + load_text(theirs.label) +
         (reason.empty() ? "" : " " + reason);
}

void ControlBlock::say_waiting(std::optional<Numbered> which) {
  const uint64_t said =
      which ? static_cast<uint64_t>(which->kind) << kKindShift | (which->number + 1) : uint64_t{0};
  rank_part(rank_).waiting.store(said);
}

std::optional<Numbered> ControlBlock::waiting(int rank) const {
  const uint64_t said = rank_part(rank).waiting.load();
  if (said == 0) return std::nullopt;
  return Numbered{.kind = static_cast<Collective>(said >> kKindShift),
                  .number = (said & ((uint64_t{1} << kKindShift) - 1)) - 1};
}

void ControlBlock::say_failed() {
  rank_part(rank_).failed.store(1);
}

bool ControlBlock::has_failed(int rank) const {
  return rank_part(rank).failed.load() != 0;
}

void ControlBlock::say_threaded() {
  rank_part(rank_).threaded.store(1);
}

bool ControlBlock::is_threaded(int rank) const {
  return rank_part(rank).threaded.load() != 0;
}

uint32_t ControlBlock::bell() const {
  return rank_part(rank_).bell.load();
}

void ControlBlock::ring(int rank) {
  Rank& part = rank_part(rank);
  part.bell.fetch_add(1);
  if (part.sleepers.load() > 0) futex(part.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void ControlBlock::ring_all() {
  for (int step = 1; step <= world_size_; ++step) ring((rank_ + step) % world_size_);
}

void ControlBlock::sleep(uint32_t bell, std::chrono::microseconds spin, std::chrono::milliseconds limit) {
  Rank& part = rank_part(rank_);
  if (spin.count() > 0) {
    const Clock::time_point end = Clock::now() + spin;
    do {
      for (int look = 0; look < 16; ++look) {
        if (part.bell.load() != bell) return;
        pause_processor();
      }
    } while (Clock::now() < end);
  }
  const timespec timeout{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  part.sleepers.fetch_add(1);
  futex(part.bell, FUTEX_WAIT, bell, &timeout);
  part.sleepers.fetch_sub(1);
}

}  // namespace zerorun
