// A bar on standard output, if that is a terminal, for work that takes longer than two seconds. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace zerorun {

/// Whether standard output reaches a terminal: itself, or through the launcher.
bool stdout_is_terminal();

class ProgressBar {
 public:
  /// `what`: such as "loading the checkpoint". `total`: of the work, in any unit. `shows`: false on ranks
  /// that leave it to another one.
  ProgressBar(std::string what, int64_t total, bool shows);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// False if it never shows anything.
  bool shows() const { return shows_; }
  /// Work that has been done beside what was done before.
  void advance(int64_t amount) { show(done_ + amount); }
  /// All work that has been done.
  void show(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  int64_t total_;
  bool shows_;
  int64_t done_ = 0;
  bool is_shown_ = false;
  Clock::time_point next_;
};

}  // namespace zerorun
