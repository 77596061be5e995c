// A timeline: what this rank does, recorded while it runs (docs/monitoring.md). Off by default, and then each
// place that records costs one relaxed load. Any thread; neither locks nor allocates.
//
//   TimelineSpan span(TimelineName::update_shard, shard);  // until the end of the scope
//
// The engine gives its rank a ring (base/timeline_ring.h). A process is one rank, and all of its threads
// record there; where ranks are threads of one process, a rank's own thread alone does.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/timeline_ring.h"

namespace zerorun {

/// The environment variable with the path of the launcher's memory file for the ring of this rank.
inline constexpr char kTimelineRingVariable[] = "ZERORUN_TIMELINE_RING";
/// The environment variables with the archive and the steps that `zerorun --timeline` asks for.
inline constexpr char kTimelineVariable[] = "ZERORUN_TIMELINE";
inline constexpr char kTimelineStepsVariable[] = "ZERORUN_TIMELINE_STEPS";

namespace timeline {

extern std::atomic<int> rings_in_use;

inline bool is_on() {
  return rings_in_use.load(std::memory_order_relaxed) > 0;
}

/// Writes an event to the ring of this thread's rank, if there is one. Returns its ticket. To be called if
/// is_on().
uint64_t record(TimelineKind kind, TimelineName name, int32_t number = -1, int64_t value = -1);

inline void instant(TimelineName name, int32_t number = -1) {
  if (is_on()) record(TimelineKind::instant, name, number);
}
inline void count(TimelineName name, int64_t bytes) {
  if (is_on()) record(TimelineKind::counter, name, -1, bytes);
}
/// The forward begins with the first use of parameters while the engine is not Busy.
void note_use();

/// Asks the thread that writes files to write this process's timelines now. Safe in a signal's handler.
void request_files() noexcept;
/// Waits until someone has called request_files().
void await_request();

/// Lets the calling thread record in `ring`; and all threads without a ring of their own, while no other ring
/// is in use. The ring must stay until the process ends.
void use(TimelineRing& ring);
/// Undoes use(), which the same thread should have called. Returns whether the ring is still in use.
bool leave(TimelineRing& ring);

}  // namespace timeline

/// A span on the track of the calling thread, or on the engine's track if it is a phase of a step.
class TimelineSpan {
 public:
  explicit TimelineSpan(TimelineName name, int32_t number = -1, int64_t value = -1)
      : is_recorded_(timeline::is_on()), name_(name) {
    if (is_recorded_) timeline::record(TimelineKind::begin, name, number, value);
  }
  ~TimelineSpan() {
    if (is_recorded_) timeline::record(TimelineKind::end, name_);
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  bool is_recorded_;
  TimelineName name_;
};

/// A backward or a step, with which the forward ends.
class TimelineBusy {
 public:
  TimelineBusy();
  ~TimelineBusy();
  TimelineBusy(const TimelineBusy&) = delete;
  TimelineBusy& operator=(const TimelineBusy&) = delete;

 private:
  TimelineRing* ring_;  // null: nothing is recorded
};

/// A span that may overlap others: from this object's start to finish(), which another thread may call.
class TimelineTransfer {
 public:
  TimelineTransfer(TimelineName name, int32_t number, int64_t bytes)
      : name_(name), ticket_(timeline::record(TimelineKind::start, name, number, bytes)) {}
  void finish() const {
    timeline::record(TimelineKind::finish, name_, static_cast<int32_t>(static_cast<uint32_t>(ticket_)));
  }

 private:
  TimelineName name_;
  uint64_t ticket_;
};

}  // namespace zerorun
