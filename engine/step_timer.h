// Where a step's time goes, for wall_clock_breakdown. Costs nothing when it is off.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

namespace zerorun {

enum class Phase { backward, reduction, norm, update };

class StepTimer {
 public:
  explicit StepTimer(bool enabled) : enabled_(enabled) {}

  /// Adds its lifetime to a phase.
  class Scope {
   public:
    Scope(StepTimer& timer, Phase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer* timer_;
    Phase phase_;
    std::chrono::steady_clock::time_point begin_;
  };

  bool enabled() const { return enabled_; }
  /// "over 10 steps, ms each: whole 350.1 | backward 200.0 | reduction wait 3.1 | norm 1.0 | update and
  /// gather 12.0 | rest (forward, data) 134.0", then starts anew.
  std::string report(int64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  bool enabled_;
  std::array<double, 4> milliseconds_{};
  Clock::time_point begin_ = Clock::now();
};

}  // namespace zerorun
