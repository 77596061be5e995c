// Measures the time of each phase of a step, for wall_clock_breakdown. Costs almost nothing when it is off.
// Profilers show the phases by name. Times are measured on the host: on a device with streams they are the
// times to launch the work, and the report adds the times that the device measured.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "device/streams.h"

namespace zerorun {

enum class Phase { backward, reduction, norm, update };

class StepTimer {
 public:
  /// `streams` must outlive this object.
  StepTimer(bool enabled, Streams& streams) : enabled_(enabled), streams_(&streams) { streams.time(enabled); }

  /// Adds the lifetime of this object to a phase's time.
  class Scope {
   public:
    Scope(StepTimer& timer, Phase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer& timer_;
    Phase phase_;
    std::chrono::steady_clock::time_point begin_;
  };

  bool enabled() const { return enabled_; }
  /// Returns "over 10 steps, ms each: whole 350.1 | backward 200.0 | reduction wait 3.1 | norm 1.0 | update
  /// and gather 12.0 | rest (forward, data) 134.0" and restarts the measurement. On a device with streams the
  /// text of describe() follows.
  std::string report(int64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  bool enabled_;
  Streams* streams_;
  std::array<double, 4> milliseconds_{};
  Clock::time_point begin_ = Clock::now();
};

/// The text that report() appends, for example "; on the device reductions 20.0, 1.0 of it waited for
/// (overlap 95 %) | gathers 12.0, 3.0 of it waited for (overlap 75 %)", times in ms per step.
std::string describe(const StreamTimes& times, int64_t steps);

}  // namespace zerorun
