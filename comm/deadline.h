// A point in time at which a wait must end, and the error texts for waits that missed it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace zerorun {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout), end_(Clock::now() + timeout) {}

  Clock::time_point end() const { return end_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Moves the end by a time in which the process was stopped.
  void skip(Clock::duration pause) { end_ += pause; }
  /// The time left, at least 1 ms because some functions take 0 as "no limit".
  std::chrono::milliseconds remaining() const;

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

/// " within 10 s (the limit set by --timeout)"
std::string within(std::chrono::milliseconds timeout);
/// "rank 1" or "ranks 1, 3"
std::string name_ranks(const std::vector<int>& ranks);

/// "reduce_scatter of bucket 3: rank 1 did not take part within 10 s (the limit set by --timeout)"
std::string missed_deadline(const std::string& what, const std::vector<int>& missing,
                            std::chrono::milliseconds timeout);
/// "reduce_scatter of bucket 3 did not end within 10 s (the limit set by --timeout)"
std::string missed_end(const std::string& what, std::chrono::milliseconds timeout);

}  // namespace zerorun
