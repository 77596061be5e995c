// The memory of one rank's timeline: a ring of the last events, in a memory file of the launcher, which can
// read it after the rank has died, or in memory of the process. Any number of threads write, without locks
// and without allocations; a ring is read while they do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/timeline_names.h"
#include "base/unique_fd.h"

namespace zerorun {

enum class TimelineKind : uint8_t { none, begin, end, start, finish, instant, counter };

/// One event as it is read.
struct TimelineEvent {
  uint64_t ticket = 0;   // its number among all events of the ring
  uint64_t time_ns = 0;  // CLOCK_MONOTONIC
  TimelineName name = {};
  TimelineKind kind = TimelineKind::none;
  uint16_t thread = 0;  // kEngineTrack, or a thread's number from 1
  int32_t number = -1;  // -1: none; of a `finish` the low bits of the ticket of its `start`
  int64_t value = -1;   // likewise
};

/// The track of the phases of a step, whichever thread runs them.
inline constexpr uint16_t kEngineTrack = 0;
/// The threads of a rank that have a track; others record nothing.
inline constexpr size_t kTimelineThreads = 64;

struct TimelineThread {
  int64_t id = 0;  // the system's
  std::array<char, 16> name{};
};

/// Whose a ring is, and where its file goes. Plain bytes, as they lie in the ring.
struct TimelineOwner {
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t process = 0;
  int64_t first_step = -1, last_step = -1;  // the steps of the file; -1: it has what the ring holds
  int64_t clock_offset_ns = 0;              // rank 0's clock minus this rank's
  int64_t round_trip_ns = 0;                // of the exchange from which the offset is known; 0: one clock
  int64_t monotonic_ns = 0, boottime_ns = 0, realtime_ns = 0;  // three clocks at one moment
  uint64_t first_ticket = 0;                                   // of the events that belong to the file
  std::array<char, 128> machine{};                             // ranks with the same text have one clock
  std::array<char, 1024> path{};                               // the archive, as an absolute path
};

class TimelineRing {
 public:
  /// A ring of `mib` MiB in the file of `fd`, or in memory of this process if `fd` is negative. Throws
  /// UserError if the system gives no memory.
  static std::unique_ptr<TimelineRing> create(int fd, int64_t mib);
  /// The ring in the file of `fd`, to read; null if no rank has made one there, or one of another version.
  static std::unique_ptr<TimelineRing> open(int fd);
  ~TimelineRing();
  TimelineRing(const TimelineRing&) = delete;
  TimelineRing& operator=(const TimelineRing&) = delete;

  /// Writes an event of now. Returns its ticket. Any thread.
  uint64_t write(TimelineKind kind, TimelineName name, uint16_t thread, int32_t number, int64_t value);
  /// The number of a thread that has not written to this ring yet; kTimelineThreads: there are too many.
  uint16_t add_thread();

  /// Whether a forward begins now: neither another one nor something else of the engine is under way.
  bool start_forward();
  /// Begins something else than a forward, which may nest. Returns whether that ends a forward.
  bool start_other();
  void end_other() { under_way_.fetch_sub(1, std::memory_order_relaxed); }

  uint64_t next_ticket() const;
  size_t capacity() const { return count_; }
  /// Whether it lies in a file.
  bool is_shared() const { return is_shared_; }
  /// The events from `first_ticket` on that are still there, in the order of tickets. Leaves out those that
  /// are being written.
  std::vector<TimelineEvent> events(uint64_t first_ticket = 0) const;
  std::vector<TimelineThread> threads() const;

  // One thread at a time.
  TimelineOwner owner() const;
  void set_owner(const TimelineOwner& owner);
  /// Whether the rank has written its file itself, so that nobody else has to.
  bool has_file() const;
  void set_has_file(bool has_file);

 private:
  struct Header;
  struct Record;
  TimelineRing(void* memory, size_t bytes, bool is_shared);

  void* memory_;
  size_t bytes_;
  bool is_shared_;
  Header* header_;
  Record* records_;
  size_t count_;                    // a power of two
  std::atomic<int> under_way_ = 0;  // -1: a forward; else how much else
};

/// A memory file for a ring, empty; not open if the system has none.
UniqueFd make_timeline_file();
/// Whether `fd` is such a file. A path in the environment that has outlived its launcher may lead to another
/// process's file.
bool is_timeline_file(int fd);

/// CLOCK_MONOTONIC.
uint64_t monotonic_ns();

}  // namespace zerorun
