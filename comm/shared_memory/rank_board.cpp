#include "comm/shared_memory/rank_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

#include "base/error.h"

namespace zerorun {
namespace {

using Word = std::atomic<uint32_t>;
using Clock = std::chrono::steady_clock;
static_assert(Word::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "processes share them");

// Marks in the place of a collective's kind.
constexpr uint64_t kReceive = 0xfe;
constexpr uint64_t kSend = 0xff;
constexpr int kKindShift = 56;
constexpr uint64_t kNumbers = (uint64_t{1} << kKindShift) - 1;

uint64_t encoded(const WaitInGroup& wait) {
  if (const auto& message = wait.message)
    return (message->is_send ? kSend : kReceive) << kKindShift | message->number;
  return static_cast<uint64_t>(wait.which.kind) << kKindShift | (wait.which.number + 1);
}

long futex(Word& word, int operation, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
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

struct alignas(64) RankBoard::Header {
  uint64_t job;  // constant after prepare()
};

// Every rank writes `bell`. Only the owning rank writes the other fields.
struct alignas(64) RankBoard::Rank {
  Word bell;
  Word sleepers;
  Word taken;                                 // 1 after a process has claimed this rank
  alignas(64) std::atomic<uint64_t> waiting;  // 0: none; else kind << 56 | number, which is counted from 1
  std::atomic<uint64_t> group;                // of `waiting`
  std::atomic<uint64_t> ends;                 // sender << 32 | receiver, if it is a message
  Word failed;
  Word announced;
  Word threaded;
  char label[512];  // of `waiting`
  char reason[256];
  char failure[1024];
};

size_t RankBoard::bytes(int world_size) {
  return sizeof(Header) + static_cast<size_t>(world_size) * sizeof(Rank);
}

void RankBoard::prepare(char* memory, uint64_t job) {
  reinterpret_cast<Header*>(memory)->job = job;
}

RankBoard::RankBoard(char* memory, int rank, int world_size, uint64_t job)
    : memory_(memory), rank_(rank), world_size_(world_size) {
  if (reinterpret_cast<Header*>(memory_)->job != job)
    throw Error("the control block of this host belongs to another job");
  if (part(rank).taken.exchange(1) != 0) {
    throw Error("another process is rank " + std::to_string(rank) + " in the control block");
  }
}

RankBoard::Rank& RankBoard::part(int rank) const {
  return reinterpret_cast<Rank*>(memory_ + sizeof(Header))[rank];
}

void RankBoard::say_waiting(const WaitInGroup& wait, std::string_view label, std::string_view reason) {
  Rank& own = part(rank_);
  own.waiting.store(0);
  store_text(own.label, label);
  store_text(own.reason, reason);
  own.group.store(wait.group);
  if (const auto& message = wait.message)
    own.ends.store(static_cast<uint64_t>(message->sender) << 32 | static_cast<uint64_t>(message->receiver));
  own.waiting.store(encoded(wait));
}

void RankBoard::say_waits_no_more() {
  part(rank_).waiting.store(0);
}

// The words are read one after the other: if the first one has changed meanwhile, the rank waits for
// something else by now.
std::optional<WaitInGroup> RankBoard::waiting(int rank) const {
  const Rank& theirs = part(rank);
  const uint64_t said = theirs.waiting.load();
  const uint64_t group = theirs.group.load();
  const uint64_t ends = theirs.ends.load();
  if (said == 0 || theirs.waiting.load() != said) return std::nullopt;
  const uint64_t kind = said >> kKindShift;
  const uint64_t number = said & kNumbers;
  if (kind < kReceive)
    return WaitInGroup{.group = group, .which = {static_cast<Collective>(kind), number - 1}};
  return WaitInGroup{.group = group,
                     .which = {},
                     .message = MessageWait{.is_send = kind == kSend,
                                            .sender = static_cast<int>(ends >> 32),
                                            .receiver = static_cast<int>(ends & 0xffffffff),
                                            .number = number}};
}

std::string RankBoard::words_of_wait(int rank) const {
  const auto wait = waiting(rank);
  if (!wait) return kNoWait;
  if (wait->message) return load_text(part(rank).label);
  CollectiveCall call{wait->which.kind, {}, {}, 0, load_text(part(rank).label), load_text(part(rank).reason)};
  return describe(call);
}

void RankBoard::say_failed(std::string_view error) {
  Rank& own = part(rank_);
  if (own.failed.load() != 0) return;  // the first failure is the cause of later ones
  store_text(own.failure, error);
  own.failed.store(1);
}

void RankBoard::announce_failure(std::string_view error) {
  if (announcer() >= 0) return;  // the first announcement is the cause of later ones
  say_failed(error);
  part(rank_).announced.store(1);
  for (int rank = 0; rank < world_size_; ++rank) ring(rank);
}

int RankBoard::announcer() const {
  for (int rank = 0; rank < world_size_; ++rank) {
    if (part(rank).announced.load() != 0) return rank;
  }
  return -1;
}

bool RankBoard::has_failed(int rank) const {
  return part(rank).failed.load() != 0;
}

std::string RankBoard::failure(int rank) const {
  return load_text(part(rank).failure);
}

void RankBoard::say_threaded() {
  part(rank_).threaded.store(1);
}

bool RankBoard::is_threaded(int rank) const {
  return part(rank).threaded.load() != 0;
}

uint32_t RankBoard::bell() const {
  return part(rank_).bell.load();
}

void RankBoard::ring(int rank) {
  Rank& theirs = part(rank);
  theirs.bell.fetch_add(1);
  if (theirs.sleepers.load() > 0) futex(theirs.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void RankBoard::sleep(uint32_t bell, std::chrono::microseconds spin, std::chrono::milliseconds limit) {
  Rank& own = part(rank_);
  if (spin.count() > 0) {
    const Clock::time_point end = Clock::now() + spin;
    do {
      for (int look = 0; look < 16; ++look) {
        if (own.bell.load() != bell) return;
        pause_processor();
      }
    } while (Clock::now() < end);
  }
  const timespec timeout{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  own.sleepers.fetch_add(1);
  futex(own.bell, FUTEX_WAIT, bell, &timeout);
  own.sleepers.fetch_sub(1);
}

}  // namespace zerorun
