// The timeline of one engine's rank (docs/monitoring.md): makes its ring, and writes its file when the steps
// that were asked for are over, when the engine ends, when a wait has failed, or at SIGUSR1. Owned by
// RunMonitor. A thread of the process writes files on request.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/timeline.h"
#include "comm/communicator.h"
#include "config/monitoring_config.h"

namespace zerorun {

struct BytesByCategory;

/// What the config asks for, or `zerorun --timeline` instead (ZERORUN_TIMELINE). Throws UserError naming a
/// variable that is malformed.
TimelineConfig wanted_timeline(const TimelineConfig& config);

class TimelineSession {
 public:
  /// A collective. Throws UserError on all ranks if one of them cannot write its file.
  TimelineSession(const TimelineConfig& config, Communicator& world);
  ~TimelineSession();
  TimelineSession(const TimelineSession&) = delete;
  TimelineSession& operator=(const TimelineSession&) = delete;

  /// Marks the end of an optimizer step, which is the `step`th, with the memory that is in use then.
  void end_step(int64_t step, const BytesByCategory& bytes);
  /// Writes the rank's file with what the ring holds, or beside the file of the chosen steps if that is
  /// written. Any thread; logs what goes wrong.
  void write_now();

 private:
  void count(const BytesByCategory& bytes);
  void write_file(bool is_last);  // the caller holds the mutex

  TimelineRing* ring_;
  TimelineConfig config_;
  std::mutex mutex_;  // of the owner in the ring, and of files
  bool steps_are_written_ = false;
};

}  // namespace zerorun
