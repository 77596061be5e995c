#include "base/timeline_ring.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>

#include "base/error.h"
#include "base/fnv1a.h"

namespace zerorun {

// [Note: events of a ring] A writer takes a ticket, which names its record. It marks the record as unfinished
// (ticket 0), writes it, and stores the ticket + 1 last. A reader takes a record only if it finds the same,
// right ticket before and after. A writer that sleeps in between while others fill the whole ring may spoil
// one newer record, which is then left out or has mixed fields; readers check them.
struct TimelineRing::Record {
  std::atomic<uint64_t> stamp;  // ticket + 1; 0: unfinished or never written
  std::atomic<uint64_t> time;
  std::atomic<uint64_t> what;  // name, kind, thread and number
  std::atomic<uint64_t> value;
};

struct TimelineRing::Header {
  uint64_t layout;
  uint64_t records;
  TimelineOwner owner;
  std::atomic<uint32_t> has_file;
  std::atomic<uint32_t> threads;
  std::array<TimelineThread, kTimelineThreads> thread;
  alignas(64) std::atomic<uint64_t> next;
};

namespace {

constexpr size_t kHeaderBytes = 8192;
constexpr char kFileName[] = "zerorun timeline";

uint64_t layout_code() {
  uint64_t code = fnv1a(kFnv1aStart, "zerorun timeline 1");
  for (const TimelineText& text : kTimelineTexts) code = fnv1a(code, text.name);
  return code;
}

uint64_t packed(TimelineKind kind, TimelineName name, uint16_t thread, int32_t number) {
  return static_cast<uint64_t>(name) | static_cast<uint64_t>(kind) << 8 |
         static_cast<uint64_t>(thread) << 16 | static_cast<uint64_t>(static_cast<uint32_t>(number)) << 32;
}

bool unpack(uint64_t what, TimelineEvent& event) {
  const auto name = what & 0xff;
  const auto kind = what >> 8 & 0xff;
  if (name >= kTimelineTexts.size() || kind > static_cast<uint64_t>(TimelineKind::counter)) return false;
  event.name = static_cast<TimelineName>(name);
  event.kind = static_cast<TimelineKind>(kind);
  event.thread = static_cast<uint16_t>(what >> 16);
  event.number = static_cast<int32_t>(static_cast<uint32_t>(what >> 32));
  return event.kind != TimelineKind::none && event.thread < kTimelineThreads;
}

}  // namespace

UniqueFd make_timeline_file() {
  return UniqueFd(::memfd_create(kFileName, MFD_CLOEXEC));
}

bool is_timeline_file(int fd) {
  std::array<char, 64> link{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(path.c_str(), link.data(), link.size() - 1);
  return size > 0 && std::string(link.data()).starts_with(std::string("/memfd:") + kFileName);
}

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

TimelineRing::TimelineRing(void* memory, size_t bytes, bool is_shared)
    : memory_(memory),
      bytes_(bytes),
      is_shared_(is_shared),
      header_(static_cast<Header*>(memory)),
      records_(reinterpret_cast<Record*>(static_cast<char*>(memory) + kHeaderBytes)),
      count_((bytes - kHeaderBytes) / sizeof(Record)) {
  static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Record) == 32);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
}

TimelineRing::~TimelineRing() {
  ::munmap(memory_, bytes_);
}

std::unique_ptr<TimelineRing> TimelineRing::create(int fd, int64_t mib) {
  const size_t records = std::bit_floor((static_cast<size_t>(mib) << 20) / sizeof(Record));
  const size_t bytes = kHeaderBytes + records * sizeof(Record);
  void* memory = MAP_FAILED;
  if (fd < 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else if (::ftruncate(fd, 0) == 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    throw UserError("zerorun.timeline.ring_mib " + std::to_string(mib) + ": the system gives no memory (" +
                    std::strerror(errno) + "): make it smaller, or leave the timeline out");
  }
  auto* header = new (memory) Header{};
  header->records = records;
  header->threads = 1;  // the engine's track
  header->layout = layout_code();
  return std::unique_ptr<TimelineRing>(new TimelineRing(memory, bytes, fd >= 0));
}

std::unique_ptr<TimelineRing> TimelineRing::open(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(kHeaderBytes + sizeof(Record)))
    return nullptr;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::unique_ptr<TimelineRing> ring(new TimelineRing(memory, bytes, true));
  const bool is_ours = ring->header_->layout == layout_code() && ring->header_->records == ring->count_ &&
                       std::has_single_bit(ring->count_);
  return is_ours ? std::move(ring) : nullptr;
}

uint64_t TimelineRing::write(TimelineKind kind, TimelineName name, uint16_t thread, int32_t number,
                             int64_t value) {
  const uint64_t time = monotonic_ns();
  const uint64_t ticket = header_->next.fetch_add(1, std::memory_order_relaxed);
  Record& record = records_[ticket & (count_ - 1)];
  record.stamp.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // no field is written before the mark
  record.time.store(time, std::memory_order_relaxed);
  record.what.store(packed(kind, name, thread, number), std::memory_order_relaxed);
  record.value.store(static_cast<uint64_t>(value), std::memory_order_relaxed);
  record.stamp.store(ticket + 1, std::memory_order_release);
  return ticket;
}

uint16_t TimelineRing::add_thread() {
  const uint32_t number = header_->threads.fetch_add(1, std::memory_order_relaxed);
  if (number >= kTimelineThreads) return kTimelineThreads;
  TimelineThread& thread = header_->thread[number];
  ::pthread_getname_np(::pthread_self(), thread.name.data(), thread.name.size());
  thread.id = ::gettid();
  return static_cast<uint16_t>(number);
}

bool TimelineRing::start_forward() {
  int idle = 0;
  return under_way_.load(std::memory_order_relaxed) == 0 &&
         under_way_.compare_exchange_strong(idle, -1, std::memory_order_relaxed);
}

bool TimelineRing::start_other() {
  int before = under_way_.load(std::memory_order_relaxed);
  while (!under_way_.compare_exchange_weak(before, before < 0 ? 1 : before + 1, std::memory_order_relaxed))
    continue;
  return before < 0;
}

uint64_t TimelineRing::next_ticket() const {
  return header_->next.load(std::memory_order_relaxed);
}

std::vector<TimelineEvent> TimelineRing::events(uint64_t first_ticket) const {
  const uint64_t end = next_ticket();
  const uint64_t begin = std::max(first_ticket, end > count_ ? end - count_ : 0);
  std::vector<TimelineEvent> events;
  events.reserve(end > begin ? end - begin : 0);
  for (uint64_t ticket = begin; ticket < end; ++ticket) {
    const Record& record = records_[ticket & (count_ - 1)];
    if (record.stamp.load(std::memory_order_acquire) != ticket + 1) continue;
    TimelineEvent event{.ticket = ticket, .time_ns = record.time.load(std::memory_order_relaxed)};
    const uint64_t what = record.what.load(std::memory_order_relaxed);
    event.value = static_cast<int64_t>(record.value.load(std::memory_order_relaxed));
    std::atomic_thread_fence(std::memory_order_acquire);  // the fields are read before the second look
    if (record.stamp.load(std::memory_order_relaxed) != ticket + 1) continue;
    if (unpack(what, event)) events.push_back(event);
  }
  return events;
}

std::vector<TimelineThread> TimelineRing::threads() const {
  const size_t count = std::min<size_t>(header_->threads.load(std::memory_order_relaxed), kTimelineThreads);
  std::vector<TimelineThread> threads(header_->thread.begin(),
                                      header_->thread.begin() + static_cast<long>(count));
  for (TimelineThread& thread : threads) thread.name.back() = '\0';
  return threads;
}

TimelineOwner TimelineRing::owner() const {
  TimelineOwner owner = header_->owner;
  owner.machine.back() = owner.path.back() = '\0';
  return owner;
}

void TimelineRing::set_owner(const TimelineOwner& owner) {
  header_->owner = owner;
}

bool TimelineRing::has_file() const {
  return header_->has_file.load(std::memory_order_acquire) != 0;
}

void TimelineRing::set_has_file(bool has_file) {
  header_->has_file.store(has_file ? 1 : 0, std::memory_order_release);
}

}  // namespace zerorun
